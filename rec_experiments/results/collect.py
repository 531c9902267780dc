"""Which run folders there are, and which of them a figure is made of."""

import functools
import shlex
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import yaml

from rec_experiments import schema, sweeps
from rec_experiments.errors import UserError
from rec_experiments.results.runs import FigureData, Run, read_run


class NoRuns(UserError):
    """None of a figure's runs has been started."""


def collect(name: str, folders: list[Path] | None, overrides: list[str]) -> FigureData:
    """The data of a sweep's figure, as far as its runs went.

    folders: where to look for the run folders instead of where the sweep puts them. overrides:
    as on the command line of the sweep. Raises NoRuns if there is no run, UserError for a wrong
    override or an unreadable run.
    """
    figure, jobs = composed(name, tuple(overrides))
    data = FigureData(
        name=name,
        title=figure.title,
        caption=figure.caption,
        scale=figure.scale,
        arms=list(dict.fromkeys(job.label for job in jobs)),
        columns=list(dict.fromkeys(job.heading for job in jobs)),
        panels=figure.panels,
        runs=[
            best_of(
                [
                    read_run(job.label, job.heading, job.config["seed"], path)
                    for path in places(job.path, folders)
                ]
            )
            for job in jobs
        ],
    )
    if len(data.missing) == len(data.runs):
        looked = sorted({str(run.path.parent) for run in data.runs})
        raise NoRuns(
            f"{name}: no run found in {', '.join(map(str, folders or looked))}; make them with: "
            + shlex.join(["python", "-m", "rec_experiments", "-m", f"sweep={name}", *overrides])
        )
    return data


@functools.cache  # composing takes seconds a figure; figures and claims of one process share it
def composed(name: str, overrides: tuple[str, ...]) -> tuple[sweeps.Figure, list[sweeps.Job]]:
    """A figure and all its jobs. Raises UserError for a wrong override."""
    figure = sweeps.load_figure(name, list(overrides))
    return figure, sweeps.jobs(figure, list(overrides))


def places(path: Path, folders: list[Path] | None) -> list[Path]:
    """Where a run may be: where the sweep puts it, or under its own name in each of `folders`.

    The name is a digest of the experiment, so the same name is the same run.
    """
    return [folder / path.name for folder in folders] if folders else [path]


def best_of(runs: list[Run]) -> Run:
    """The copy of a run to count: one that is done before one that is not, then one that this code
    made, then the furthest."""
    best = max(
        runs, key=lambda run: (run.done, not run.made_by, run.last_step, run.state != "missing")
    )
    found = {run.path.resolve(): run.path for run in runs if run.state != "missing"}
    found.pop(best.path.resolve(), None)
    return replace(best, copies=tuple(found.values()))


def default_folder() -> Path:
    """Where runs go when nobody says otherwise."""
    return Path(yaml.safe_load((schema.CONF / "config.yaml").read_text())["output_dir"])


def run_folders(folders: Iterable[Path]) -> dict[str, list[Path]]:
    """The run folders of each name; the same name is the same run."""
    found: dict[str, list[Path]] = {}
    for path in sorted(file.parent for folder in folders for file in folder.glob("*/status.json")):
        found.setdefault(path.name, []).append(path)
    return found
