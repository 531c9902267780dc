"""The runs of a figure: arms × columns × seeds, found in the table of runs.

The points of the sweep are expanded from its file and the command line. A point and a run belong
together if their overrides make the same experiment (`config.settings`), so nothing is composed to
find a run.
"""

import functools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas

from rec_experiments import sweeps
from rec_experiments.analysis.results.table import STATE, table, with_content
from rec_experiments.common.errors import UserError
from rec_experiments.config.labels import shown
from rec_experiments.config.settings import experiment, seed
from rec_experiments.runs import metrics

SHOWN = ("eval/accuracy", "train/reward")  # panels of a multirun


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

    @property
    def missing(self) -> pandas.DataFrame:
        """The runs without rows."""
        return self.runs[~self.runs["run"].isin(self.steps["run"])]

    @property
    def partial(self) -> pandas.DataFrame:
        """The runs with rows that are not finished."""
        begun = self.runs["run"].isin(self.steps["run"])
        return self.runs[begun & (self.runs["state"] != "done")]


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
        panels=[sweeps.Panel(metric, metrics.label(metric), log=False) for metric in SHOWN],
    )
