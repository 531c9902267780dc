"""Figures as sweeps: arms × grid, expanded into jobs, each with its run folder.

The sweeper plugin launches these jobs; figures, claims and the report read their folders.
"""

import copy
import fnmatch
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rec_experiments.config import schema
from rec_experiments.config.composition import choices_by_group, compose, composing
from rec_experiments.config.experiment import Experiment, check_seed
from rec_experiments.config.identity import identity, run_path
from rec_experiments.errors import UserError
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.sweeps.compositions import Keep, Values, keeping
from rec_experiments.tracking import metrics
from rec_experiments.types import class_name

SWEEP_KEYS = ("sweep", "scale")  # overrides that choose the jobs, and are no part of one
# What a figure may show of its runs.
PICTURES = ("curves", "map", "stability")
STATISTICS = ("lowest", "highest", "median", "mean")  # of a run's evaluations, for a table


class SetByArm(UserError):
    """The command line sets a key that an arm sets, whose label would be untrue."""


@dataclass(kw_only=True, frozen=True, slots=True)
class Sweep:
    """Arms × grid (conf/hydra/sweeper/arms.yaml).

    arms: legend label to overrides. grid: key to its values. only: patterns of the labels to run,
    with * for any text.

    Raises UserError for a value of the wrong shape and for a pattern that matches no arm.
    """

    arms: dict[str, list[str]]
    grid: dict[str, list[Any]]
    only: list[str]

    def __post_init__(self) -> None:
        _check("arms", self.arms, dict, "a mapping from labels to lists of overrides")
        _check("grid", self.grid, dict, "a mapping from keys to lists of values")
        _check("only", self.only, list, "a list of labels")
        for name in ("arms", "grid"):
            for key, values in getattr(self, name).items():
                _check(f"{name}.{key}", values, list, "a list")
        if self.arms and not self.only:
            raise UserError("hydra.sweeper.only=[]: selects no arm; allowed: one label or more")
        for pattern in self.only:
            _check("only", pattern, str, "a list of labels")
            if self.arms and not fnmatch.filter(self.arms, pattern):
                raise UserError(
                    f"hydra.sweeper.only={pattern}: matches no arm; allowed, with * for any text: "
                    + "; ".join(self.arms)
                )

    def chosen(self) -> dict[str, list[str]]:
        """The arms that `only` selects."""
        return {
            label: overrides
            for label, overrides in self.arms.items()
            if any(fnmatch.fnmatchcase(label, pattern) for pattern in self.only)
        }


def _check(key: str, value: Any, kind: type, words: str) -> None:
    """Raise UserError for a value of another type."""
    if not isinstance(value, kind):
        raise UserError(f"hydra.sweeper.{key}={value}: must be {words}")


@dataclass(frozen=True, slots=True)
class Panel:
    """metric: a key of metrics.jsonl. label: of the y axis. log: whether that is logarithmic."""

    metric: str
    label: str
    log: bool


@dataclass(kw_only=True, frozen=True, slots=True)
class Figure(Sweep):
    """A figure that is drawn from runs (sweeps/NAME.yaml).

    columns: the grid's key whose values are the columns. headings: those values to column titles.
    panels: the rows. picture: one of PICTURES. map: what a map has as panels, across and down: the
    word arm or column, or keys of a run's configuration; and the arm that the others are
    compared with.
    statistics: those of STATISTICS to tabulate, or []. hours: estimated duration of one run.
    """

    name: str
    title: str
    caption: str
    scale: str
    columns: str
    headings: dict[str, str]
    panels: list[Panel]
    picture: str
    map: dict[str, Any]
    statistics: list[str]
    hours: float

    def heading(self, point: "Point") -> str:
        """The title of a point's column, with the other keys that the command line sweeps."""
        value = point.lines[self.columns].partition("=")[2]
        lines = [point.lines[key].partition("=") for key in self.divided_by(point)]
        named = [f"{key.rpartition('.')[2]} = {chosen}" for key, _, chosen in lines]
        return ", ".join([self.headings.get(value, value), *named])

    def divided_by(self, point: "Point") -> list[str]:
        """The swept keys whose values are not shown side by side, as columns or in a map."""
        places = [self.columns, *(self.map.get(name, []) for name in ("panels", "across", "down"))]
        shown = {key for each in places for key in ([each] if isinstance(each, str) else each)}
        return [key for key in point.swept if key not in shown]


@dataclass(frozen=True, slots=True)
class Point:
    """One cell of arms × grid. label: the arm's, or "". lines: key to its override. swept: the keys
    other than the seed to which the command line gives several values."""

    label: str
    lines: dict[str, str]
    swept: tuple[str, ...] = ()

    @property
    def overrides(self) -> list[str]:
        return list(self.lines.values())


@dataclass(frozen=True, slots=True)
class Job:
    """A composed point. config: its resolved values. path: its run folder. heading: the title of
    its column."""

    label: str
    heading: str
    overrides: list[str]
    config: dict[str, Any]
    path: Path


def names() -> list[str]:
    """All figures with a sweep: the paper's in its order, then those of other packages."""
    found = ((folder / "sweep").glob("*.yaml") for folder in schema.conf_folders())
    return [file.stem for files in found for file in sorted(files, key=_length_first)]


def _length_first(file: Path) -> tuple[int, str]:
    return len(file.stem), file.stem


def load_figure(name: str, overrides: list[str] | None = None) -> Figure:
    """The figure of sweeps/NAME.yaml, changed by the command line (scale=…, hydra.sweeper.…).

    Raises UserError for an unknown figure or a wrong override.
    """
    if name not in names():
        raise UserError(f"sweep={name}: no such figure; allowed: {', '.join(names())}")
    with composing(), keeping() as kept:
        of_sweep = [str(each.input_line) for each in _parse(overrides or []) if _shapes_sweep(each)]
        lines = [f"sweep={name}", *of_sweep]

        def sweeper() -> Values:
            config = compose("config", lines, return_hydra_config=True)
            return _plain(config.hydra.sweeper)

        return figure_of(name, kept(["hydra.sweeper", *lines], sweeper))


def jobs(figure: Figure, overrides: list[str] | None = None) -> list[Job]:
    """Every job of the figure, composed and checked. Runs nothing.

    A value in `overrides` replaces an axis of the grid. Two labels may share a run folder. Raises
    UserError for a wrong override.
    """
    with composing(), keeping() as kept:
        return _composed(figure, expand(figure, overrides or []), kept)


def points(figure: Figure, overrides: list[str]) -> list[Point]:
    """The points of the figure, as `jobs` composes them."""
    with composing():
        return expand(figure, overrides)


def swept(figure: Figure, overrides: list[str]) -> list[str]:
    """The keys that the command line gives several values, besides the seed and those that the
    figure shows side by side."""
    return figure.divided_by(points(figure, overrides)[0])


def single_value(line: str) -> dict[str, Any]:
    """The key and the value of an override; {} if it chooses from a group."""
    override = _parse([line])[0]
    value = override.value()
    is_choice = "." not in override.key_or_group and isinstance(value, str)
    return {} if is_choice else {override.get_key_element(): value}


def outline(figure: Figure, overrides: list[str]) -> tuple[list[Point], Job]:
    """The points of the figure, each combination of overrides once, and the first as a job.

    Composes that job alone: the others are neither checked nor known by their run folders. Raises
    UserError for an override that the first job does not accept.
    """
    with composing(), keeping() as kept:
        points = {frozenset(point.overrides): point for point in expand(figure, overrides)}
        found = list(points.values())
        [job] = _composed(figure, found[:1], kept)
        return found, job


def _composed(figure: Figure, points: list[Point], kept: Keep) -> list[Job]:
    fast = by_choices(lambda lines: compose("config", lines))

    def composed(lines: list[str]) -> Values:
        return kept(lines, lambda: checked(fast(lines)))

    return compose_jobs(points, composed, figure.heading)


def by_choices(compose: Callable[[list[str]], DictConfig]) -> Callable[[list[str]], DictConfig]:
    """`compose` for the points of a grid, most of which differ in values only: Hydra, which takes
    tenths of a second, composes each combination of choices once, and values are set in copies.

    Overrides that set no existing key to a value are left to Hydra, with its errors.
    """
    once = functools.cache(lambda *lines: compose(list(lines)))
    parse = functools.cache(lambda line: _parse([line])[0])
    groups = {group.partition("/")[0] for group in choices_by_group()}

    def composed(lines: list[str]) -> DictConfig:
        parsed = {line: parse(line) for line in lines}
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


def sweep_of(node: dict[str, Any]) -> Sweep:
    """The sweep of the composed node hydra.sweeper."""
    node = _at_scale(node)
    return Sweep(**{each.name: node[each.name] for each in fields(Sweep)})


def figure_of(name: str, node: dict[str, Any]) -> Figure:
    """The figure of the composed node hydra.sweeper."""
    node = _at_scale(node)
    _check("statistics", node["statistics"], list, "a list of names")
    for key, values, allowed in (
        ("panels", node["panels"], node["axes"]),
        ("picture", [node["picture"]], PICTURES),
        ("statistics", node["statistics"], STATISTICS),
    ):
        for value in values:
            if value not in allowed:
                raise UserError(
                    f"hydra.sweeper.{key}={value}: no such choice; allowed: {', '.join(allowed)}"
                )
    return Figure(
        **{each.name: node[each.name] for each in fields(Sweep)},
        name=name,
        title=_title(node),
        caption=f"{node['caption']} {node['data'][node['setting']]}",
        scale=node["scale"],
        columns=node["columns"],
        headings=node["headings"],
        panels=[
            Panel(metric, **{"label": metrics.label(metric), **node["axes"][metric]})
            for metric in node["panels"]
        ],
        picture=node["picture"],
        map=node["map"],
        statistics=node["statistics"],
        hours=node["hours"][node["setting"]],
    )


def _title(node: dict[str, Any]) -> str:
    """The figure, its scale and, if the file names a topic, the data."""
    figure = " ".join(filter(None, [node["title"], node["titled"]]))
    if "topic" not in node:
        return figure
    return f"{figure}: {node['topic']} on {node['names'].get(node['setting'], node['setting'])}"


def _at_scale(node: dict[str, Any]) -> dict[str, Any]:
    """The node with the values of its scale merged in.

    Raises UserError for a scale without arms if other scales have some.
    """
    if isinstance(node["only"], str):  # one label, without brackets
        node = {**node, "only": [node["only"]]}
    at, scale = node.get("at", {}), node.get("scale")
    merged = OmegaConf.to_container(OmegaConf.merge(node, at.get(scale, {})))
    with_arms = [name for name, special in at.items() if special.get("arms")]
    if with_arms and not merged["arms"]:  # type: ignore[index, call-overload]
        raise UserError(
            f"scale={scale}: this sweep has no arms there; allowed: {', '.join(with_arms)}"
        )
    return merged  # type: ignore[return-value]


def expand(sweep: Sweep, overrides: list[str]) -> list[Point]:
    """Arms × grid as overrides: the first axis is the outermost loop, the arms the innermost.

    An override with several values, as in seed=0,1, is an axis; any override replaces the axis of
    its key. Raises SetByArm for an override of a key that an arm sets.
    """
    parsed = [override for override in _parse(overrides) if not _shapes_sweep(override)]
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
    for override in parsed:
        for label, arm in arms.items():
            if override.key_or_group in arm:
                raise SetByArm(
                    f"{override.input_line}: the arm {label} sets {override.key_or_group}; "
                    "choose arms with hydra.sweeper.only=[LABEL,…]"
                )
    swept = tuple(key for key, lines in typed.items() if len(lines) > 1 and key != "seed")
    points = []
    for lines in itertools.product(*axes.values()):
        cell = dict(zip(axes, lines, strict=True))
        points += [Point(label, {**cell, **arm}, swept) for label, arm in arms.items()]
    return points


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
    value = _parse([line])[0].value() if line else None
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


def finished(job: Job) -> bool:
    """Whether the job's run is done and need not be repeated. False for an unreadable folder."""
    try:
        return RunFolder(job.path).is_finished(bool(job.config.get("remake")))
    except UserError:
        return False


def _parse(overrides: list[str]) -> list[Override]:
    hydra = GlobalHydra.instance()
    loader = hydra.config_loader() if hydra.is_initialized() else None  # resolves glob(…)
    return OverridesParser.create(config_loader=loader).parse_overrides(overrides)


def _shapes_sweep(override: Override) -> bool:
    return override.is_hydra_override() or override.get_key_element() in SWEEP_KEYS


def _lines(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [str(override.input_line)]
    if not override.is_discrete_sweep():
        raise UserError(f"{override.input_line}: cannot be swept; list the values, as in a=1,2")
    key = override.get_key_element()
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def gpus_of(config: dict[str, Any]) -> int:
    """The GPUs that a run needs on one machine: one for each rank, or two if rollouts overlap
    with training. 0 if it uses whatever device there is."""
    if config["device"] != "cuda":
        return 0
    return config["ranks"] * (2 if class_name(config["pipeline"]) == "Overlap" else 1)


def summary(figure: Figure, number: int, gpus: int) -> str:
    """The resources for a number of the figure's runs, each on `gpus` GPUs."""
    if not gpus:
        return f"{number} runs, no GPU, about {number * figure.hours:.1f} hours on one core"
    return (
        f"{number} runs, each on {gpus} GPU for about {figure.hours:g} h: "
        f"{number * gpus} GPUs to run all at once, {number * gpus * figure.hours:g} GPU-hours"
    )
