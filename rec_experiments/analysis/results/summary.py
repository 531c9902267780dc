"""The statistics of a figure's runs, as plain values and as text."""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas

from rec_experiments import sweeps
from rec_experiments.analysis.results.figure import FigureRuns
from rec_experiments.analysis.results.formatting import text_table
from rec_experiments.analysis.results.statistics import (
    ACCURACY,
    CONFIDENCE,
    STATISTICS,
    Statistic,
    area,
    best,
    by_seed,
    final,
    interval_of_mean,
    last,
)

SUMMARISED = (ACCURACY, "train/reward")
SUMMARIES = {"final": final, "area": area, "best": best, "last": last}
assert set(sweeps.STATISTICS) <= set(STATISTICS)  # the choices of hydra.sweeper.statistics
NAMES_SHOWN = 6


def summary(data: FigureRuns) -> dict[str, Any]:
    """For each arm and column, over finished runs: the mean of each statistic with its interval,
    and the difference from the figure's first arm; also the evaluation statistics that the figure
    asks for. Unfinished runs are named in the remarks and do not enter the means."""
    metrics = dict.fromkeys([*SUMMARISED, *(panel.metric for panel in data.panels)])
    asked = {name: STATISTICS[name] for name in data.statistics}
    return {
        "figure": data.name,
        "title": data.title,
        "releases": releases_text(data.steps),
        "interval": f"{100 * CONFIDENCE:.0f} % t interval over seeds; none for a single seed",
        **{name: each.meaning for name, each in (SUMMARIES | asked).items()},
        "paired": f"difference of the area from that of {data.arms[0]}, paired by seed",
        "rows": _rows(data, metrics, SUMMARIES),
        "asked": [*asked],
        "evaluations": _rows(data, [ACCURACY], asked) if asked else [],
        "remarks": remarks(data),
    }


def _rows(
    data: FigureRuns, metrics: Iterable[str], statistics: Mapping[str, Statistic]
) -> list[dict[str, Any]]:
    rows = []
    for arm, column, metric in itertools.product(data.arms, data.columns, metrics):
        steps, first = data.select(arm, column), data.select(data.arms[0], column)
        found = {name: by_seed(steps, of, metric).values for name, of in statistics.items()}
        areas, others = (by_seed(each, area, metric).values for each in (steps, first))
        paired = [areas[seed] - others[seed] for seed in areas.keys() & others.keys()]
        about = {"arm": arm, "column": column, "metric": metric}
        means = {name: _mean([*values.values()]) for name, values in found.items()}
        means["paired"] = None if areas == others else _mean(paired)
        rows.append({**about, "seeds": min(map(len, found.values())), **means})
    return rows


def _mean(values: list[float]) -> dict[str, Any] | None:
    if not values:
        return None
    return {"mean": float(np.mean(values)), "interval": interval_of_mean(values)}


def summary_text(found: dict[str, Any]) -> str:
    """The summary of a figure as text: a table of statistics, with a line for each arm, column and
    metric, and the table of evaluation statistics, if any."""
    lines = [found["title"], found["releases"]]
    for rows, heads in (
        (found["rows"], {name: name for name in (*SUMMARIES, "paired")}),
        (found["evaluations"], {name: STATISTICS[name].name for name in found["asked"]}),
    ):
        if rows:
            keys = ["arm", "column", "metric", "seeds", *heads]
            body = [[_cell(row[key]) for key in keys] for row in rows]
            lines += ["", *text_table([[*keys[:4], *heads.values()], *body]), ""]
            lines += [f"{head:<8} {found[name]}" for name, head in heads.items()]
    return "\n".join([*lines, f"[ ]      {found['interval']}", *found["remarks"]]) + "\n"


def _cell(value: Any) -> str:
    if not isinstance(value, dict):
        return "-" if value is None else str(value)
    ends = value["interval"]
    return f"{value['mean']:.3f}" + (f" [{ends[0]:.3f}, {ends[1]:.3f}]" if ends else "")


def remarks(data: FigureRuns) -> list[str]:
    """What a reader of the figure must know: few seeds, partial and missing runs."""
    found = []
    seeds = data.steps["seed"].nunique()
    needed = len(sweeps.claim_seeds(data.scale) or [])
    if seeds < needed:
        found.append(f"A quick look at {seeds} seed{'s'[: seeds != 1]}; claims need {needed}.")
    partial = [f"{_name(run)} ({run.state}, step {run.step})" for run in data.partial.itertuples()]
    if partial:
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


def _name(run: Any) -> str:
    return ", ".join(filter(None, (run.arm, run.column, f"seed {run.seed}")))
