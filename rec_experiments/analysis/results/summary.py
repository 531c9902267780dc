"""The statistics of a figure's runs as a table, and what a reader of the figure must know."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas

from rec_experiments import sweeps
from rec_experiments.analysis.results.figure import FigureRuns
from rec_experiments.analysis.results.statistics import (
    ACCURACY,
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


def columns(data: FigureRuns) -> dict[str, Statistic]:
    """The statistics of the figure's table by the heads of their columns."""
    asked = [STATISTICS[name] for name in data.statistics]
    return {each.name: each for each in asked} or SUMMARIES


def summary(data: FigureRuns) -> pandas.DataFrame:
    """A row for each arm, column and metric: the number of finished runs, the mean of each
    statistic over them with the ends of its interval, and `paired`, the difference of the area from
    that of the figure's first arm, paired by seed. Unfinished runs do not enter the means."""
    metrics = dict.fromkeys([*SUMMARISED, *(panel.metric for panel in data.panels)])
    rows = []
    for arm, column, metric in itertools.product(data.arms, data.columns, metrics):
        steps, first = data.select(arm, column), data.select(data.arms[0], column)
        found = {head: by_seed(steps, of, metric).values for head, of in columns(data).items()}
        areas, others = (by_seed(each, area, metric).values for each in (steps, first))
        paired = (
            []
            if areas == others
            else [areas[seed] - others[seed] for seed in areas.keys() & others.keys()]
        )
        row: dict[str, Any] = {"arm": arm, "column": column, "metric": metric}
        row["seeds"] = min(map(len, found.values()))
        for head, values in found.items():
            row |= mean_and_ends(head, [*values.values()])
        rows.append(row | mean_and_ends("paired", paired))
    return pandas.DataFrame(rows)


def mean_and_ends(name: str, values: Sequence[float]) -> dict[str, float]:
    """The mean of one value per seed and the ends of its interval, as columns of a table."""
    low, high = interval_of_mean(values) or (np.nan, np.nan)
    middle = float(np.mean(values)) if len(values) else np.nan
    return {name: middle, f"{name}_low": low, f"{name}_high": high}


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
