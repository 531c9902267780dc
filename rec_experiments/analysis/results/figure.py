"""The runs of a figure: arms × columns × seeds, found in the table of runs.

The points of the sweep are expanded from its file and the command line. A point and a run belong
together if their overrides make the same experiment (`settings.experiment`), so nothing is composed
to find a run.
"""

import functools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas
import yaml

from rec_experiments import sweeps
from rec_experiments.analysis.results.content import leave_out
from rec_experiments.analysis.results.settings import experiment, seed, settings
from rec_experiments.analysis.results.table import STATE, table, with_content
from rec_experiments.common.errors import UserError
from rec_experiments.config import schema
from rec_experiments.config.labels import shown
from rec_experiments.runs import metrics

SHOWN = ("eval/accuracy", "train/reward")  # panels of a multirun


class NoRuns(UserError):
    """None of a figure's runs has started."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FigureRuns:
    """A figure's description and its runs. Runs and panels are in the order drawn.

    runs: a row for each arm, column and seed, with the columns of `table.runs`; `overrides` are
    those of the figure's point. A run that has not begun has the state `missing`. steps: a row for
    each recorded step of these runs, as `table.table`. scale: a choice of conf/scale. picture: kind
    of picture. map: as in sweeps.Figure. statistics: names of the evaluation statistics that get a
    table. swept: as sweeps.swept, keys whose values divide the columns further.
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
            "column": [figure.heading(point) for point in points],
            "overrides": [shlex.join(point.overrides) for point in points],
        }
    )
    labels["seed"] = labels["overrides"].map(seed)
    labels["experiment"] = labels["overrides"].map(experiment)
    known = found[["experiment", "run", "path"]]
    matched = labels.reset_index(names="point").merge(known, on="experiment")
    known = with_content(matched).sort_values(["release", "step"], ascending=False, kind="stable")
    known = known.drop_duplicates("point").set_index("point")[["run", "path", *STATE]]
    runs = labels.join(known).drop(columns="experiment")
    runs = runs.fillna({"run": "", "path": "", "state": "missing", "step": 0, "note": ""})
    runs = _without_torn(runs.astype({"step": int}))
    if (runs["state"] == "missing").all():
        command = ["python", "-m", "rec_experiments", "-m", f"sweep={name}", *overrides]
        raise NoRuns(f"{name}: no run found; make them with: {shlex.join(command)}")
    return FigureRuns(
        name=name,
        runs=runs,
        steps=table(runs),
        title=figure.title,
        caption=figure.caption,
        scale=figure.scale,
        panels=figure.panels,
        picture=figure.picture,
        map=figure.map,
        statistics=figure.statistics,
        swept=sweeps.swept(figure, [*overrides]),
    )


def multirun(name: str, found: pandas.DataFrame) -> FigureRuns:
    """The runs of a multirun that is no figure's, by the name of its manifest: what was swept is in
    the arms and columns, and what all runs share is in the title.

    found: of `table.find(places)`. Raises NoRuns if no run has begun.
    """
    runs = with_content(found[found["figure"] == name])
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


def _without_torn(runs: pandas.DataFrame) -> pandas.DataFrame:
    """The runs, of which those that are done before their last step are unreadable."""
    steps = [settings(overrides)["steps"] for overrides in runs["overrides"]]
    torn = (runs["state"] == "done") & (runs["step"] != steps)
    for path, step in runs.loc[torn, ["path", "step"]].itertuples(index=False):
        leave_out(f"run {path}: is done, but ends at step {step}")
    return runs.assign(state=runs["state"].mask(torn, "unreadable"))


def chooses_seeds(overrides: Iterable[str]) -> bool:
    return any(override.partition("=")[0] == "seed" for override in overrides)


def scales() -> list[str]:
    """All choices of scale, sorted."""
    return sorted(_scale_files())


def claim_seeds(scale: str) -> list[int] | None:
    """The seeds that claims are judged on at a scale; None if they take the figures' own, and for
    a multirun, which has no scale.

    conf/scale fixes them before the runs: adding seeds until a verdict appears finds a difference
    sooner or later.
    """
    return _scale_file(scale).get("claim_seeds") if scale else None


def claim_rates(scale: str) -> list[float]:
    """The learning rates that claims are judged at: first that of the scale's settings, which needs
    no override. Empty if the scale names none."""
    return [float(rate) for rate in _scale_file(scale).get("claim_rates", [])]


def _scale_file(scale: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(_scale_files()[scale].read_text(encoding="utf-8"))
    return found


def _scale_files() -> dict[str, Path]:
    found = (folder / "scale" for folder in schema.conf_folders())
    return {file.stem: file for folder in found for file in folder.glob("*.yaml")}


def output_folder(overrides: Iterable[str]) -> Path:
    """Where the sweeps put their runs."""
    chosen = [line.partition("=")[2] for line in overrides if line.startswith("output_dir=")]
    return Path(chosen[-1]).expanduser() if chosen else default_folder()


def default_folder() -> Path:
    """The default output_dir."""
    config = (schema.CONF / "config.yaml").read_text(encoding="utf-8")
    return Path(yaml.safe_load(config)["output_dir"])
