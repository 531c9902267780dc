"""The statistics of a figure's runs, as plain values and as text."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas

from rec_experiments import sweeps
from rec_experiments.analysis.results.figure import FigureRuns, claim_seeds
from rec_experiments.analysis.results.formatting import text_table
from rec_experiments.analysis.results.measures import (
    BEST_POINTS,
    LAST_POINTS,
    STATISTICS,
    Measure,
    area,
    best,
    final,
    last,
)
from rec_experiments.analysis.results.seeds import CONFIDENCE, by_seed, interval_of_mean

EVALUATED = "eval/accuracy"
SUMMARISED = (EVALUATED, "train/reward")
SUMMARIES: dict[str, Measure] = {"final": final, "area": area, "best": best, "last": last}
assert set(sweeps.STATISTICS) <= set(STATISTICS)  # the choices of hydra.sweeper.statistics
INTERVAL = f"{100 * CONFIDENCE:.0f} % t interval over seeds"
NAMES_SHOWN = 6


def summary(data: FigureRuns) -> dict[str, Any]:
    """For each arm and column, over finished runs: the mean of each statistic with its interval,
    and the difference from the figure's first arm; also the evaluation statistics that the figure
    asks for.

    Partial and missing runs are listed and do not enter the means.
    """
    metrics = dict.fromkeys([*SUMMARISED, *(panel.metric for panel in data.panels)])
    found: dict[str, Any] = {
        "figure": data.name,
        "title": data.title,
        "releases": releases_text(data.steps),
        "interval": INTERVAL,
        "final": f"{LAST_POINTS} of a run",
        "area": "area under the curve divided by its length",
        "best": BEST_POINTS,
        "paired": f"difference of the area from that of {data.arms[0]}, paired by seed",
        "rows": _rows(data, metrics, SUMMARIES),
        "partial": _partial(data),
        "missing": [_name(run) for run in data.missing.itertuples()],
    }
    if data.statistics:
        wanted = {name: STATISTICS[name] for name in data.statistics}
        found["statistics"] = {name: each.meaning for name, each in wanted.items()}
        measures = {name: each.of for name, each in wanted.items()}
        found["evaluations"] = _rows(data, [EVALUATED], measures)
    return found


def _rows(
    data: FigureRuns, metrics: Iterable[str], measures: Mapping[str, Measure]
) -> list[dict[str, Any]]:
    rows = []
    for arm, column, metric in itertools.product(data.arms, data.columns, metrics):
        steps, first = data.select(arm, column), data.select(data.arms[0], column)
        found = {name: by_seed(steps, of, metric).values for name, of in measures.items()}
        areas, others = (by_seed(each, area, metric).values for each in (steps, first))
        paired = [areas[seed] - others[seed] for seed in areas.keys() & others.keys()]
        rows.append(
            {
                "arm": arm,
                "column": column,
                "metric": metric,
                "seeds": min(map(len, found.values())),
                **{name: _mean([*values.values()]) for name, values in found.items()},
                "paired": None if areas == others else _mean(paired),
            }
        )
    return rows


def _mean(values: list[float]) -> dict[str, Any] | None:
    if not values:
        return None
    interval = interval_of_mean(values)
    return {"mean": float(np.mean(values)), "interval": list(interval) if interval else None}


def summary_text(found: dict[str, Any]) -> str:
    """The summary of a figure as text: a table of statistics, with a line for each arm, column and
    metric, and the table of evaluation statistics, if any."""
    lines = [
        found["title"],
        found["releases"],
        "",
        *_table(found["rows"], {name: name for name in (*SUMMARIES, "paired")}),
        "",
        f"[ ]    {found['interval']}; none for a single seed",
        *(f"{name:<6} {found[name]}" for name in ("final", "area", "best", "paired")),
    ]
    for word in ("partial", "missing"):
        lines += [f"{word}  {name}" for name in found[word]]
    if "evaluations" in found:
        heads = {name: STATISTICS[name].name for name in found["statistics"]}
        lines += ["", *_table(found["evaluations"], heads), ""]
        lines += [f"{head:<6} {found['statistics'][name]}" for name, head in heads.items()]
    return "\n".join(lines) + "\n"


def _table(rows: list[dict[str, Any]], heads: dict[str, str]) -> list[str]:
    names = ["arm", "column", "metric"]
    body = [
        [*(row[name] for name in names), str(row["seeds"]), *(_cell(row[name]) for name in heads)]
        for row in rows
    ]
    return text_table([[*names, "seeds", *heads.values()], *body])


def _cell(value: dict[str, Any] | None) -> str:
    if value is None:
        return "-"
    ends = value["interval"]
    interval = f" [{ends[0]:.3f}, {ends[1]:.3f}]" if ends else ""
    return f"{value['mean']:.3f}{interval}"


def remarks(data: FigureRuns) -> list[str]:
    """What a reader of the figure must know: few seeds, partial and missing runs."""
    found = []
    seeds, needed = data.steps["seed"].nunique(), claim_seeds(data.scale)
    if needed and seeds < len(needed):
        found.append(f"A quick look at {seeds} seed{'s'[: seeds != 1]}; claims need {len(needed)}.")
    if partial := _partial(data):
        found.append(f"Partial, drawn as far as they go: {_names(partial)}")
    missing = data.missing.groupby(["arm", "column"], sort=False)["seed"].unique()
    if len(missing):
        cells = [
            ", ".join([*filter(None, cell), f"seed {', '.join(map(str, seeds_of_cell))}"])
            for cell, seeds_of_cell in missing.items()
        ]
        found.append(f"Missing: {_names(cells)}")
    return found


def releases_text(steps: pandas.DataFrame) -> str:
    """Which releases made some runs, as in `Runs of release 11, 12.`; steps: their rows."""
    names = [str(release) for release in sorted(steps["release"].dropna().unique())]
    names += ["an earlier one"] if steps["release"].isna().any() else []
    return f"Runs of release {', '.join(names)}." if names else ""


def _names(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return "; ".join(names[:NAMES_SHOWN]) + (f"; and {more} more." if more > 0 else ".")


def _partial(data: FigureRuns) -> list[str]:
    return [f"{_name(run)} ({run.state}, step {run.step})" for run in data.partial.itertuples()]


def _name(run: Any) -> str:
    return ", ".join(filter(None, (run.arm, run.column, f"seed {run.seed}")))
