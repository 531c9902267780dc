"""The jobs of a sweep: its points, composed and checked, each with its run folder."""

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import OverrideType
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rec_experiments.common.errors import UserError
from rec_experiments.config import schema
from rec_experiments.config.composition import choices_by_group, compose, composing
from rec_experiments.config.experiment import Experiment, check_seed
from rec_experiments.config.identity import identity, run_path
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.sweeps.figures import Figure, Point, parse, points

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
    return _composed(points(figure, overrides), figure.heading)


def outline(figure: Figure, overrides: Sequence[str]) -> tuple[list[Point], Job]:
    """The points of the figure, each combination of overrides once, and the first as a job.

    Composes that job alone: the others are neither checked nor known by their run folders. Raises
    UserError for an override that the first job does not accept.
    """
    found = {frozenset(point.overrides): point for point in points(figure, overrides)}
    distinct_points = list(found.values())
    [job] = _composed(distinct_points[:1], figure.heading)
    return distinct_points, job


def _composed(points: list[Point], heading: Callable[[Point], str]) -> list[Job]:
    with composing():
        fast = by_choices(lambda lines: compose("config", lines))
        return compose_jobs(points, lambda lines: checked(fast(lines)), heading)


def by_choices(compose: Callable[[list[str]], DictConfig]) -> Callable[[list[str]], DictConfig]:
    """`compose` for the points of a grid, most of which differ in values only: Hydra, which takes
    tenths of a second, composes each combination of choices once, and values are set in copies.

    Overrides that set no existing key to a value are left to Hydra, with its errors.
    """
    once = functools.cache(lambda *lines: compose(list(lines)))
    parsed_once = functools.cache(lambda line: parse([line])[0])
    groups = {group.partition("/")[0] for group in choices_by_group()}

    def composed(lines: list[str]) -> DictConfig:
        parsed = {line: parsed_once(line) for line in lines}
        values = [o for o in parsed.values() if o.key_or_group.partition("/")[0] not in groups]
        if any(
            each.type is not OverrideType.CHANGE or each.package or isinstance(each.value(), dict)
            for each in parsed.values()
        ):
            return compose(lines)
        config = copy.deepcopy(once(*(line for line in lines if parsed[line] not in values)))
        try:
            for each in values:
                OmegaConf.update(config, each.key_or_group, each.value(), merge=True)
        except OmegaConfBaseException:
            return compose(lines)
        return config

    return composed


def compose_jobs(
    points: list[Point],
    compose: Callable[[list[str]], Values],
    heading: Callable[[Point], str] = lambda point: "",
) -> list[Job]:
    """The points as jobs. compose: returns the checked values of overrides, and is slow; runs that
    differ only in their seed share a call. Raises UserError for a run that is not possible."""
    once = functools.cache(lambda *lines: compose(list(lines)))

    def config_of(point: Point) -> Values:
        others = [line for key, line in point.lines.items() if key != "seed"]
        seed = _integer(point.lines.get("seed"))
        if seed is None or any("${" in line for line in others):  # may refer to the seed
            return once(*point.overrides)
        try:
            check_seed(seed)
        except ValueError as error:
            raise UserError(str(error)) from error
        return {**once(*others), "seed": seed}

    configs = map(config_of, points)
    return [
        Job(point.label, heading(point), point.overrides, config, run_path(config))
        for point, config in zip(points, configs, strict=True)
    ]


@functools.cache
def _integer(line: str | None) -> int | None:
    """The value of an override, if it is an integer."""
    value = parse([line])[0].value() if line else None
    return value if type(value) is int else None


def checked(config: DictConfig) -> Values:
    """The values of a composed run. Raises UserError for a value out of range."""
    return schema.build(config, Experiment).config()


def _plain(config: DictConfig) -> Values:
    return OmegaConf.to_container(config, resolve=True)  # type: ignore[return-value]


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
