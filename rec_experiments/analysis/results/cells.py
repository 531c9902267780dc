"""The finished runs of a sweep as one table, for figures whose cells are not columns of curves."""

from typing import Any

import numpy as np
import pandas

from rec_experiments.analysis.results.figure_data import FigureData
from rec_experiments.analysis.results.runs import Run, points
from rec_experiments.analysis.results.statistics import final, initial, lowest, second_half
from rec_experiments.errors import UserError
from rec_experiments.rollout.schedule import ages_of

METRIC = "eval/accuracy"
DRIFT = "train/log_ratio_second_moment"
STATISTICS = ["initial", "second_half", "final", "lowest", "gain", "drift"]
NONE = "none"  # how a table writes null, as in a clip without a bound


def table(data: FigureData, keys: list[str]) -> pandas.DataFrame:
    """One row per finished run: arm, seed, the keys of its configuration (`column`: the heading of
    the figure's column), and statistics.

    initial, final, lowest: of the evaluations. second_half: mean of the evaluations in the second
    half of the steps. gain: second_half − initial. drift: mean over steps of E[(log ρ)²]. Raises
    UserError if runs of one seed share a cell, because they differ in a key that is not listed.
    """
    rows = [_row(run, keys) for run in data.runs if run.done]
    found = pandas.DataFrame(rows, columns=["arm", *keys, "seed", *STATISTICS])
    if found.duplicated(["arm", *keys, "seed"]).any():
        raise UserError(
            f"{data.name}: several runs of one seed would share a cell of the map; give every key "
            f"but seed and {', '.join(keys)} a single value"
        )
    return found


def _row(run: Run, keys: list[str]) -> dict[str, Any]:
    start, second = initial(run.rows, METRIC), second_half(run.rows, METRIC)
    drift = points(run.rows, DRIFT)[1]
    return {
        "arm": run.arm,
        **{key: run.column if key == "column" else value_of(run.config, key) for key in keys},
        "seed": run.seed,
        "initial": start,
        "second_half": second,
        "final": final(run.rows, METRIC),
        "lowest": lowest(run.rows, METRIC),
        "gain": second - start,
        "drift": float(np.mean(drift)) if drift else np.nan,
    }


def against(table: pandas.DataFrame, arm: str, keys: list[str]) -> pandas.DataFrame:
    """The rows of other arms, with the `difference` of their gain to that of `arm` at the same keys
    and seed; rows without such a counterpart are left out."""
    base = table[table["arm"] == arm][[*keys, "seed", "gain"]]
    paired = table[table["arm"] != arm].merge(base, on=[*keys, "seed"], suffixes=("", "_of_base"))
    return paired.assign(difference=paired["gain"] - paired.pop("gain_of_base"))


def value_of(config: Any, key: str) -> Any:
    """The value of a dotted key; of a schedule, the age of its oldest data in gradient steps."""
    if key == "sync":
        return oldest_age(config)
    for part in key.split("."):
        config = config[part]
    return NONE if config is None else config


def oldest_age(config: Any) -> int:
    """The largest number of gradient steps between drawing a batch and its last update."""
    return max(ages_of(config["sync"], config["updates"], config["steps"]))
