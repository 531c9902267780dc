"""Figures as sweeps: arms × grid, expanded into jobs, with the run folder of each.

The sweeper plugin launches these jobs, the renderer reads their folders.
"""

import fnmatch
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from rec_experiments.config import schema
from rec_experiments.config.composition import compose, composing
from rec_experiments.config.experiment import Experiment, check_seed
from rec_experiments.config.identity import identity, run_path
from rec_experiments.errors import UserError
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.sweeps.compositions import Composed, kept, resolved, settled

# Overrides that say which jobs there are; a job itself does not see them.
SWEEP_KEYS = ("sweep", "scale")
PICTURES = ("curves", "staleness")  # what a figure may show of its runs
STATISTICS = ("lowest", "highest", "median", "mean")  # of evaluations, that a table may have


@dataclass(kw_only=True, frozen=True, slots=True)
class Sweep:
    """Arms × grid (conf/hydra/sweeper/arms.yaml).

    arms: legend label to the overrides that belong together. grid: key to its values. only:
    patterns of the labels to run, * for any text. fixed: keys that the command line must not set,
    because labels name what arms set them to.

    Raises UserError for a value of another shape and for a pattern that fits no arm.
    """

    arms: dict[str, list[str]]
    grid: dict[str, list[Any]]
    only: list[str]
    fixed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        _check("arms", self.arms, dict, "a mapping from labels to lists of overrides")
        _check("grid", self.grid, dict, "a mapping from keys to lists of values")
        _check("only", self.only, list, "a list of labels")
        _check("fixed", self.fixed, list, "a list of keys")
        for name in ("arms", "grid"):
            for key, values in getattr(self, name).items():
                _check(f"{name}.{key}", values, list, "a list")
        if self.arms and not self.only:
            raise UserError(
                "hydra.sweeper.only=[]: lets no arm through; allowed: one label or more"
            )
        for pattern in self.only:
            _check("only", pattern, str, "a list of labels")
            if self.arms and not fnmatch.filter(self.arms, pattern):
                raise UserError(
                    f"hydra.sweeper.only={pattern}: fits no arm; allowed, with * for any text: "
                    + "; ".join(self.arms)
                )

    def chosen(self) -> dict[str, list[str]]:
        """The arms that `only` lets through."""
        return {
            label: overrides
            for label, overrides in self.arms.items()
            if any(fnmatch.fnmatchcase(label, pattern) for pattern in self.only)
        }


def _check(key: str, value: Any, kind: type, words: str) -> None:
    """Raise UserError, naming the key, for a value of another kind."""
    if not isinstance(value, kind):
        raise UserError(f"hydra.sweeper.{key}={value}: must be {words}")


@dataclass(frozen=True, slots=True)
class Panel:
    """metric: a key of metrics.jsonl. label: of the vertical axis. log: is it logarithmic."""

    metric: str
    label: str
    log: bool


@dataclass(kw_only=True, frozen=True, slots=True)
class Figure(Sweep):
    """A figure of the paper that is drawn from runs (sweeps/NAME.yaml).

    columns: the key of the grid that makes columns. headings: its values to the columns' titles.
    panels: the rows. scale: mini or paper. picture: what is drawn of the runs, one of PICTURES.
    statistics: of STATISTICS, those in a table of the runs' evaluations; none for no table.
    hours: that a run takes, an estimate.
    """

    name: str
    title: str
    caption: str
    scale: str
    columns: str
    headings: dict[str, str]
    panels: list[Panel]
    picture: str
    statistics: list[str]
    hours: float

    def heading(self, point: "Point") -> str:
        """Title of the column that a point belongs to."""
        value = point.lines[self.columns].partition("=")[2]
        return self.headings.get(value, value)


@dataclass(frozen=True, slots=True)
class Point:
    """One cell of arms × grid. label: the arm's, "" without arms. lines: key to its override."""

    label: str
    lines: dict[str, str]

    @property
    def overrides(self) -> list[str]:
        return list(self.lines.values())


@dataclass(frozen=True, slots=True)
class Job:
    """A point, composed. config: the resolved experiment. path: the run folder it will use.
    heading: title of the column it belongs to."""

    label: str
    heading: str
    overrides: list[str]
    config: dict[str, Any]
    path: Path


def names() -> list[str]:
    """All figures that have a sweep: the paper's in its order, then those of outside packages."""
    found = ((folder / "sweep").glob("*.yaml") for folder in schema.conf_folders())
    return [file.stem for files in found for file in sorted(files, key=_length_first)]


def _length_first(file: Path) -> tuple[int, str]:
    return len(file.stem), file.stem


def load_figure(name: str, overrides: list[str] | None = None) -> Figure:
    """The figure as sweeps/NAME.yaml and the command line (scale=…, hydra.sweeper.…) describe it.

    Raises UserError for an unknown figure or a wrong override.
    """
    if name not in names():
        raise UserError(f"sweep={name}: no such figure; allowed: {', '.join(names())}")
    with composing():
        about_sweep = [str(o.input_line) for o in _parse(overrides or []) if _shapes_sweep(o)]
        lines = [f"sweep={name}", *about_sweep]

        def sweeper() -> Composed:
            config = compose("config", lines, return_hydra_config=True)
            return settled(config.hydra.sweeper, within=("hydra.sweeper.",))

        return figure_of(name, resolved(kept(["hydra.sweeper", *lines], sweeper)))


def jobs(figure: Figure, overrides: list[str] | None = None) -> list[Job]:
    """Every job of the figure, composed and checked. Runs nothing.

    A value in `overrides` replaces an axis of the grid, and wins over an arm. Two labels may share
    one run folder. Raises UserError for a wrong override.
    """
    with composing():
        points = expand(figure, overrides or [])
        return compose_jobs(points, lambda lines: _composed(*lines), figure.heading)


@functools.cache  # figures share runs
def _composed(*overrides: str) -> Composed:
    return kept(overrides, lambda: _checked(compose("config", list(overrides))))


def sweep_of(node: dict[str, Any]) -> Sweep:
    """Arms × grid of the composed node hydra.sweeper."""
    node = _at_scale(node)
    return Sweep(arms=node["arms"], grid=node["grid"], only=node["only"], fixed=node["fixed"])


def figure_of(name: str, node: dict[str, Any]) -> Figure:
    """The figure of the composed node hydra.sweeper."""
    node = _at_scale(node)
    for metric in node["panels"]:
        if metric not in node["axes"]:
            allowed = ", ".join(node["axes"])
            raise UserError(f"hydra.sweeper.panels={metric}: no such panel; allowed: {allowed}")
    if node["picture"] not in PICTURES:
        raise UserError(
            f"hydra.sweeper.picture={node['picture']}: no such picture; allowed: "
            + ", ".join(PICTURES)
        )
    _check("statistics", node["statistics"], list, "a list of names")
    for statistic in node["statistics"]:
        if statistic not in STATISTICS:
            raise UserError(
                f"hydra.sweeper.statistics={statistic}: no such statistic; allowed: "
                + ", ".join(STATISTICS)
            )
    return Figure(
        arms=node["arms"],
        grid=node["grid"],
        only=node["only"],
        fixed=node["fixed"],
        name=name,
        title=_title(node),
        caption=f"{node['caption']} {node['data'][node['setting']]}",
        scale=node["scale"],
        columns=node["columns"],
        headings=node["headings"],
        panels=[Panel(metric, **node["axes"][metric]) for metric in node["panels"]],
        picture=node["picture"],
        statistics=node["statistics"],
        hours=node["hours"][node["setting"]],
    )


def _title(node: dict[str, Any]) -> str:
    """Which figure it is, at which scale, and, where the files say so, on what it was made."""
    figure = " ".join(filter(None, [node["title"], node["titled"]]))
    if "topic" not in node:
        return figure
    return f"{figure}: {node['topic']} on {node['names'].get(node['setting'], node['setting'])}"


def _at_scale(node: dict[str, Any]) -> dict[str, Any]:
    """Lay what holds at one scale only over the rest.

    Raises UserError at a scale without arms of a sweep that has them at others.
    """
    at, scale = node.get("at", {}), node.get("scale")
    merged = OmegaConf.to_container(OmegaConf.merge(node, at.get(scale, {})))
    with_arms = [name for name, special in at.items() if special.get("arms")]
    if with_arms and not merged["arms"]:  # type: ignore[index, call-overload]
        raise UserError(
            f"scale={scale}: this sweep has no arms there; allowed: {', '.join(with_arms)}"
        )
    return merged  # type: ignore[return-value]


def expand(sweep: Sweep, overrides: list[str]) -> list[Point]:
    """Arms × grid as overrides, the first axis of the grid outermost, the arms innermost.

    An override that sweeps, as in seed=0,1, is an axis; any override replaces the axis of its key.
    Raises UserError for one of a key that is fixed.
    """
    parsed = [override for override in _parse(overrides) if not _shapes_sweep(override)]
    for override in parsed:
        if override.key_or_group in sweep.fixed:
            raise UserError(f"{override.input_line}: the arms of this sweep set it")
    typed = {override.get_key_element(): _lines(override) for override in parsed}
    grid = {
        key: [f"{key}={'null' if value is None else value}" for value in values]
        for key, values in sweep.grid.items()
    }
    axes = {**grid, **typed}
    arms = {
        label: {o.get_key_element(): str(o.input_line) for o in _parse(lines)}
        for label, lines in (sweep.chosen() or {"": []}).items()
    }
    points = []
    for lines in itertools.product(*axes.values()):
        cell = dict(zip(axes, lines, strict=True))
        wins = {key: cell[key] for key in typed}
        points += [Point(label, {**cell, **arm, **wins}) for label, arm in arms.items()]
    return points


def compose_jobs(
    points: list[Point],
    compose: Callable[[list[str]], Composed],
    heading: Callable[[Point], str] = lambda point: "",
) -> list[Job]:
    """The points as jobs, each composed and checked. Raises UserError for what cannot run.

    Composing and checking are slow, so runs that differ in their seed alone share them.
    """

    @functools.cache
    def once(*lines: str) -> Composed:
        composed = compose(list(lines))
        return _checked(composed) if isinstance(composed, DictConfig) else composed

    found = []
    for point in points:
        config = _with_seed(point, once)
        found.append(Job(point.label, heading(point), point.overrides, config, run_path(config)))
    return found


def _with_seed(point: Point, compose: Callable[..., Composed]) -> dict[str, Any]:
    """The point composed without its seed, the seed then set: as Hydra does, values come last."""
    others = [line for key, line in point.lines.items() if key != "seed"]
    seed = _number(point.lines["seed"]) if "seed" in point.lines else None
    if seed is None:  # none, or one that Hydra has to refuse
        return resolved(compose(*point.overrides))
    composed = compose(*others)
    if isinstance(composed, DictConfig):
        return resolved(_checked(OmegaConf.merge(composed, {"seed": seed})))  # type: ignore[arg-type]
    try:
        check_seed(seed)
    except ValueError as error:
        raise UserError(str(error)) from error
    return {**composed, "seed": seed}


@functools.cache
def _number(line: str) -> int | None:
    """The value of an override, if it is a whole number."""
    value = _parse([line])[0].value()
    return value if type(value) is int else None


def _checked(config: DictConfig) -> Composed:
    """A composed run. Raises UserError for what cannot run."""
    schema.build(config, Experiment)
    return settled(config)


def resolve(config: DictConfig) -> tuple[dict[str, Any], Path]:
    """A composed run, checked, as plain values, and its folder."""
    values = resolved(_checked(config))
    return values, run_path(values)


def distinct(found: list[Job]) -> dict[Path, Job]:
    """One job for each run folder: figures and labels share runs.

    Raises UserError if different runs would share a folder, as with a fixed run_dir.
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


def finished(job: Job) -> bool:
    """Whether the job's run is done, as its folder says, and not to be made again. One whose folder
    cannot be read is not."""
    try:
        return RunFolder(job.path).is_finished(bool(job.config.get("remake")))
    except UserError:
        return False


def _parse(overrides: list[str]) -> list[Override]:
    hydra = GlobalHydra.instance()
    loader = hydra.config_loader() if hydra.is_initialized() else None  # for glob(…)
    return OverridesParser.create(config_loader=loader).parse_overrides(overrides)


def _shapes_sweep(override: Override) -> bool:
    return override.is_hydra_override() or override.get_key_element() in SWEEP_KEYS


def _lines(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [str(override.input_line)]
    if not override.is_discrete_sweep():
        raise UserError(f"{override.input_line}: cannot be swept; list values, as in a=1,2")
    key = override.get_key_element()
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def gpus_of(config: dict[str, Any]) -> int:
    """GPUs that a run is laid out for, on one machine: one a rank, and another for what draws
    beside it. 0 where the run takes whatever device there is."""
    if config["device"] != "cuda":
        return 0
    beside = config["pipeline"]["kind"] == "overlap"
    return config["ranks"] * (2 if beside else 1)


def summary(figure: Figure, runs: list[Job]) -> str:
    """What the figure's runs would ask of a machine."""
    number, gpus = len(runs), max((gpus_of(job.config) for job in runs), default=0)
    if not gpus:
        return f"{number} runs, no GPU, about {number * figure.hours:.1f} hours on one core"
    return (
        f"{number} runs, each asking for {gpus} GPU for {figure.hours:g} h (an estimate): "
        f"{number * gpus} GPUs to run all at once, {number * gpus * figure.hours:g} GPU-hours"
    )
