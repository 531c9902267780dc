"""The jobs of a sweep: its points, composed and checked, each with its run folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rec_experiments.common.errors import UserError
from rec_experiments.config import schema
from rec_experiments.config.composition import composing
from rec_experiments.config.experiment import Experiment
from rec_experiments.config.identity import identity, run_path
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.sweeps.figures import Figure, Point, points


@dataclass(frozen=True, slots=True)
class Job:
    """A composed point. config: its resolved values. path: its run folder. heading: the title of
    its column."""

    label: str
    heading: str
    overrides: list[str]
    config: dict[str, Any]
    path: Path


def jobs(figure: Figure | None, overrides: Sequence[str] = ()) -> list[Job]:
    """Every job of a figure, or of a multirun (None), composed and checked. Runs nothing.

    A value in `overrides` replaces an axis of the grid. Two labels may share a run folder. Raises
    UserError for a wrong override and for a run that is not possible.
    """
    return compose_jobs(points(figure, overrides))


def compose_jobs(points: list[Point]) -> list[Job]:
    """The points as jobs. Raises UserError for a run that is not possible."""
    with composing() as compose:
        configs = [
            schema.build(compose("config", point.overrides), Experiment).config()
            for point in points
        ]
    return [
        Job(point.label, point.heading, point.overrides, config, run_path(config))
        for point, config in zip(points, configs, strict=True)
    ]


def distinct(found: list[Job]) -> dict[Path, Job]:
    """One job for each run folder: figures and labels share runs.

    Raises UserError if different runs have the same folder, as with a fixed run_dir.
    """
    runs: dict[Path, Job] = {}
    for job in found:
        first = runs.setdefault(job.path, job)
        if identity(first.config) != identity(job.config):
            raise UserError(
                f"run_dir={job.path}: every run of a sweep needs its own folder; "
                "leave run_dir at null and choose output_dir"
            )
    return runs


def output_of(job: Job) -> Path:
    """The output folder of a job."""
    return Path(job.config.get("output_dir", job.path.parent)).expanduser()


def finished(job: Job) -> bool:
    """Whether the job's run is done and need not be repeated. False for an unreadable folder."""
    try:
        return RunFolder(job.path).is_finished(bool(job.config.get("remake")))
    except UserError:
        return False
