"""The runs of a figure: arms × columns × seeds, found in the table of runs; their statistics, and
what a reader of the figure must know.

The points of the sweep are expanded from its file and the command line. A point and a run belong
together if their overrides make the same experiment (`config.settings`), so nothing is composed to
find a run.
"""

import functools
import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas

from rec_experiments import sweeps
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
from rec_experiments.analysis.results.table import STATE, table, with_content
from rec_experiments.common.errors import UserError
from rec_experiments.config.labels import shown
from rec_experiments.config.settings import experiment, seed
from rec_experiments.runs import metrics

SUMMARISED = (ACCURACY, "train/reward")  # also the panels of a multirun
SUMMARIES = {"final": final, "area": area, "best": best, "last": last}
assert set(sweeps.STATISTICS) <= set(STATISTICS)  # the choices of hydra.sweeper.statistics
NAMES_SHOWN = 6


class NoRuns(UserError):
    """None of a figure's runs has started."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FigureRuns:
    """A figure's description and its runs. Runs and panels are in the order drawn.

    runs: a row for each arm, column and seed, with the columns of `table.runs`; `overrides` are
    those of the figure's point. A run that has not begun has the state `missing`. steps: a row for
    each recorded step of these runs, as `table.table`. swept: keys whose values divide the columns
    further (Figure.divided_by). The others: as in sweeps.Figure.
    """

    name: str
    runs: pandas.DataFrame
    steps: pandas.DataFrame
    title: str = ""
    caption: str = ""
    scale: str = ""
    panels: Sequence[sweeps.Panel] = ()
    picture: str = "curves"
    map: Mapping[str, Any] = field(default_factory=dict)
    statistics: Sequence[str] = ()
    swept: Sequence[str] = ()

    @functools.cached_property
    def arms(self) -> list[str]:
        """Its legend labels."""
        return list(self.runs["arm"].unique())

    @functools.cached_property
    def columns(self) -> list[str]:
        """The titles of its columns."""
        return list(self.runs["column"].unique())

    def select(self, arm: str, column: str) -> pandas.DataFrame:
        """The recorded steps of one arm and column, of finished and other runs."""
        return self.steps[(self.steps["arm"] == arm) & (self.steps["column"] == column)]


def figure_runs(name: str, found: pandas.DataFrame, overrides: Sequence[str]) -> FigureRuns:
    """The runs of a sweep's figure, finished or not.

    found: of `table.find(places)`; figures that are read one after the other share it. overrides:
    as on the sweep's command line, where several values of seed select seeds. Damaged runs are
    reported on stderr. Raises NoRuns if no run has begun, UserError for a wrong override.
    """
    figure = sweeps.load_figure(name, [*overrides])
    points = sweeps.points(figure, [*overrides])
    labels = pandas.DataFrame(
        {
            "figure": name,
            "arm": [point.label for point in points],
            "column": [point.heading for point in points],
            "overrides": [shlex.join(point.overrides) for point in points],
        }
    )
    labels["seed"] = labels["overrides"].map(seed)
    labels["experiment"] = labels["overrides"].map(experiment)
    known = with_content(found[found["experiment"].isin(labels["experiment"])])
    known = known.drop_duplicates("experiment")[["experiment", "run", "path", *STATE]]
    runs = labels.merge(known, how="left", on="experiment").drop(columns="experiment")
    runs = runs.fillna({"run": "", "path": "", "state": "missing", "step": 0, "note": ""})
    runs = runs.astype({"step": int})
    if (runs["state"] == "missing").all():
        command = ["python", "-m", "rec_experiments", "-m", f"sweep={name}", *overrides]
        raise NoRuns(f"{name}: no run found; make them with: {shlex.join(command)}")
    of_figure = ("title", "caption", "scale", "panels", "picture", "map", "statistics")
    return FigureRuns(
        name=name,
        runs=runs,
        steps=table(runs),
        swept=figure.divided_by(overrides),
        **{key: getattr(figure, key) for key in of_figure},
    )


def multirun(name: str, found: pandas.DataFrame) -> FigureRuns:
    """The runs of a multirun that is no figure's, by the name of its manifest: what was swept is in
    the arms and columns, and what all runs share is in the title.

    found: of `table.find(places)`. Raises NoRuns if no run has begun.
    """
    of_name = found[found["figure"] == name].drop_duplicates(["arm", "column", "run"])
    runs = with_content(of_name).sort_index()
    if (runs["state"] == "missing").all():
        raise NoRuns(f"{name}: none of its runs has begun")
    words = [shlex.split(overrides) for overrides in runs["overrides"]]
    shared = [word for word in words[0] if all(word in each for each in words)]
    return FigureRuns(
        name=name,
        runs=runs,
        steps=table(runs),
        title=shown(shared) or name,
        panels=[sweeps.Panel(metric, metrics.label(metric), log=False) for metric in SUMMARISED],
    )


# What they say ------------------------------------------------------------------------------------


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
        paired = [areas[seed] - others[seed] for seed in areas.keys() & others.keys()]
        row: dict[str, Any] = {"arm": arm, "column": column, "metric": metric}
        row["seeds"] = min(map(len, found.values()))
        for head, values in found.items():
            row |= mean_and_ends(head, [*values.values()])
        rows.append(row | mean_and_ends("paired", [] if areas == others else paired))
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
    begun = data.runs["run"].isin(data.steps["run"])
    partial = [
        f"{_names([run.arm, run.column, f'seed {run.seed}'])} ({run.state}, step {run.step})"
        for run in data.runs[begun & (data.runs["state"] != "done")].itertuples()
    ]
    if partial:
        found.append(f"Partial, drawn as far as they go: {_first(partial)}")
    missing = data.runs[~begun].groupby(["arm", "column"], sort=False)["seed"].unique()
    cells = [
        _names([*cell, f"seed {', '.join(map(str, of_cell))}"]) for cell, of_cell in missing.items()
    ]
    if cells:
        found.append(f"Missing: {_first(cells)}")
    return found


def _names(parts: list[str]) -> str:
    return ", ".join(filter(None, parts))


def _first(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return "; ".join(names[:NAMES_SHOWN]) + (f"; and {more} more." if more > 0 else ".")


def releases_text(releases: pandas.Series) -> str:
    """Which releases made some runs, as in `Runs of release 11, 12.`"""
    names = [str(release) for release in sorted(releases.dropna().unique())]
    names += ["an earlier one"] if releases.isna().any() else []
    return f"Runs of release {', '.join(names)}." if names else ""
