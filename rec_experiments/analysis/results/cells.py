"""The finished runs of a figure as a table of gains, for figures whose cells are colours."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas

from rec_experiments.analysis.results.figure import FigureRuns
from rec_experiments.analysis.results.measures import final, initial, lowest, second_half
from rec_experiments.analysis.results.seeds import curve
from rec_experiments.analysis.results.settings import oldest_age, settings
from rec_experiments.common.errors import UserError

METRIC = "eval/accuracy"
DRIFT = "train/log_ratio_second_moment"
NONE = "none"  # how a table writes null, as in a clip without a bound
LABELS = ["arm", "column", "seed", "run"]


def table(data: FigureRuns, keys: Sequence[str]) -> pandas.DataFrame:
    """One row per finished run: arm, the values of the keys, seed, and statistics.

    keys: of the experiment's settings; `column`, the heading of the figure's column; `sync`, the
    age of the oldest data in gradient steps. initial, final, lowest: of the evaluations.
    second_half: mean of the evaluations in the second half of the steps. gain: second_half −
    initial. drift: mean over steps of E[(log ρ)²]. Raises UserError if runs of one seed share a
    cell, because they differ in a key that is not listed.
    """
    done = data.runs[data.runs["state"] == "done"]
    values = {key: [_value(each, key) for each in done["overrides"]] for key in keys}
    done = done[[*LABELS]].assign(**{key: values[key] for key in keys if key != "column"})
    if done.duplicated(["arm", *keys, "seed"]).any():
        raise UserError(
            f"{data.name}: several runs of one seed would share a cell of the map; give every key "
            f"but seed and {', '.join(keys)} a single value"
        )
    finished = data.steps[data.steps["state"] == "done"]
    found = {label: _statistics(rows) for label, rows in finished.groupby(LABELS, sort=False)}
    statistics = pandas.DataFrame.from_dict(found, orient="index").rename_axis(LABELS)
    return done.join(statistics, on=LABELS)[["arm", *keys, "seed", *statistics.columns]]


def _statistics(rows: pandas.DataFrame) -> dict[str, float]:
    accuracy, drift = curve(rows, METRIC), curve(rows, DRIFT).dropna()
    start, second = initial(accuracy), second_half(accuracy)
    return {
        "initial": start,
        "second_half": second,
        "final": final(accuracy),
        "lowest": lowest(accuracy),
        "gain": second - start,
        "drift": float(np.mean(drift.to_numpy())) if len(drift) else np.nan,
    }


def _value(overrides: str, key: str) -> Any:
    found = settings(overrides)
    value = oldest_age(found) if key == "sync" else found.get(key)
    return NONE if value is None else value


def against(table: pandas.DataFrame, arm: str, keys: Sequence[str]) -> pandas.DataFrame:
    """The rows of other arms, with the `difference` of their gain to that of `arm` at the same keys
    and seed; rows without such a counterpart are left out."""
    base = table[table["arm"] == arm][[*keys, "seed", "gain"]]
    paired = table[table["arm"] != arm].merge(base, on=[*keys, "seed"], suffixes=("", "_of_base"))
    return paired.assign(difference=paired["gain"] - paired.pop("gain_of_base"))
