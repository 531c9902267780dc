"""The jobs of a sweep: its points, composed and checked, each with its run folder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from rec_experiments.common.errors import UserError
from rec_experiments.config import schema
from rec_experiments.config.composition import composing
from rec_experiments.config.experiment import Experiment
from rec_experiments.config.identity import identity, run_path
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.sweeps.figures import Figure, Point, points

Values = dict[str, Any]  # a composed configuration, resolved


@dataclass(frozen=True, slots=True)
class Job:
    """A composed point. config: its resolved values. path: its run folder. heading: the title of
    its column."""

    label: str
    heading: str
    overrides: list[str]
    config: dict[str, Any]
    path: Path


def jobs(figure: Figure, overrides: Sequence[str] = ()) -> list[Job]:
    """Every job of the figure, composed and checked. Runs nothing.

    A value in `overrides` replaces an axis of the grid. Two labels may share a run folder. Raises
    UserError for a wrong override.
    """
    return compose_jobs(points(figure, overrides), figure.heading)


def outline(figure: Figure, overrides: Sequence[str]) -> tuple[list[Point], Job]:
    """The points of the figure, each combination of overrides once, and the first as a job.

    Composes that job alone: the others are neither checked nor known by their run folders. Raises
    UserError for an override that the first job does not accept.
    """
    found = {frozenset(point.overrides): point for point in points(figure, overrides)}
    distinct_points = list(found.values())
    [job] = compose_jobs(distinct_points[:1], figure.heading)
    return distinct_points, job


def compose_jobs(
    points: list[Point], heading: Callable[[Point], str] = lambda point: ""
) -> list[Job]:
    """The points as jobs. Raises UserError for a run that is not possible."""
    with composing() as compose:
        configs = [checked(compose("config", point.overrides)) for point in points]
    return [
        Job(point.label, heading(point), point.overrides, config, run_path(config))
        for point, config in zip(points, configs, strict=True)
    ]


def checked(config: DictConfig) -> Values:
    """The values of a composed run. Raises UserError for a value out of range."""
    return schema.build(config, Experiment).config()


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


def summary(figure: Figure, number: int, gpus: int) -> str:
    """The resources for a number of the figure's runs, each on `gpus` GPUs."""
    if not gpus:
        return f"{number} runs, no GPU, about {number * figure.hours:.1f} hours on one core"
    return (
        f"{number} runs, each on {gpus} GPU for about {figure.hours:g} h: "
        f"{number * gpus} GPUs to run all at once, {number * gpus * figure.hours:g} GPU-hours"
    )
