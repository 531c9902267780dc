"""The sweeps of figures: arms × grid, and what a figure shows of its runs (sweeps/NAME.yaml).

Nothing here is composed by Hydra: the points of a figure are lines of overrides.
"""

import fnmatch
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import yaml
from hydra.core.override_parser.types import Glob, Override
from omegaconf import OmegaConf

from rec_experiments.common.errors import UserError, meant
from rec_experiments.common.pieces import Settings
from rec_experiments.config import plugins, schema
from rec_experiments.config.composition import parse
from rec_experiments.runs import metrics

SWEEP_KEYS = ("sweep", "scale")  # overrides that choose the jobs, and are no part of one
OF_SWEEP = "hydra.sweeper."  # overrides that change the figure
CHANGEABLE = ("only", "panels", "statistics")  # by them
Statistic = Literal["lowest", "highest", "median", "mean"]  # of a run's evaluations, for a table
STATISTICS = get_args(Statistic)


class SetByArm(UserError):
    """The command line sets a key that an arm sets, whose label would be untrue."""


@dataclass(frozen=True, slots=True)
class Panel:
    """metric: a key of metrics.jsonl. label: of the y axis. log: whether that is logarithmic."""

    metric: str
    label: str
    log: bool


class Figure(Settings):
    """A figure that is drawn from runs (sweeps/NAME.yaml).

    arms: legend label to overrides. grid: key to its values. only: patterns of the labels to run,
    with * for any text. columns: the grid's key whose values are the columns. headings: those
    values to column titles. panels: the rows. map: what a map has as panels, across and down: the
    word arm or column, or keys of a run's configuration; and the arm that the others are compared
    with. statistics: to tabulate, or []. hours: estimated duration of one run.

    Raises ValueError for a value of the wrong type and for a pattern that matches no arm.
    """

    name: str
    title: str
    caption: str
    scale: str
    arms: dict[str, list[str]]
    grid: dict[str, list[Any]]
    only: list[str]
    columns: str
    headings: dict[str, str]
    panels: list[Panel]
    picture: Literal["curves", "map", "stability"]
    map: dict[str, Any]
    statistics: list[Statistic]
    hours: float

    def __post_init__(self) -> None:
        if self.arms and not self.only:
            raise ValueError("only=[]: selects no arm; allowed: one label or more")
        for pattern in self.only:
            if self.arms and not fnmatch.filter(self.arms, pattern):
                raise ValueError(
                    f"only={pattern}: matches no arm; allowed, with * for any text: "
                    + "; ".join(self.arms)
                )

    def chosen(self) -> dict[str, list[str]]:
        """The arms that `only` selects."""
        return {
            label: overrides
            for label, overrides in self.arms.items()
            if any(fnmatch.fnmatchcase(label, pattern) for pattern in self.only)
        }

    def divided_by(self, overrides: Iterable[str]) -> list[str]:
        """The keys that the command line gives several values, besides the seed and those that the
        figure shows side by side, as columns or in a map."""
        places = [self.columns, *(self.map.get(name, []) for name in ("panels", "across", "down"))]
        shown = {key for each in places for key in ([each] if isinstance(each, str) else each)}
        lines = {key: _lines(each) for key, each in _of_runs(overrides).items()}
        return [key for key in lines if len(lines[key]) > 1 and key not in {*shown, "seed"}]

    def heading(self, lines: dict[str, str], divided_by: Iterable[str]) -> str:
        """The title of a cell's column, with the other keys that the command line sweeps."""
        value = lines[self.columns].partition("=")[2]
        others = [lines[key].partition("=") for key in divided_by]
        named = [f"{key.rpartition('.')[2]} = {chosen}" for key, _, chosen in others]
        return ", ".join([self.headings.get(value, value), *named])


@dataclass(frozen=True, slots=True)
class Point:
    """One cell of arms × grid. label: the arm's, or "" for a multirun. heading: of its column, or
    "". lines: key to its override."""

    label: str
    heading: str
    lines: dict[str, str]

    @property
    def overrides(self) -> list[str]:
        return list(self.lines.values())


def names() -> list[str]:
    """All figures with a sweep: the paper's in its order, then those of other packages."""
    found = [[*(folder / "sweep").glob("*.yaml")] for folder in plugins.conf_folders()]
    return [name for files in found for _, name in sorted((len(f.stem), f.stem) for f in files)]


def load_figure(name: str, overrides: Iterable[str] = ()) -> Figure:
    """The figure of sweeps/NAME.yaml, changed by the command line (scale=…, hydra.sweeper.…).

    Raises UserError for an unknown figure or a wrong override.
    """
    if name not in names():
        raise UserError(f"sweep={name}: no such figure; allowed: {', '.join(names())}")
    changes = [each for each in parse(overrides) if _shapes_sweep(each)]
    common = _read("figure")
    scales = [str(each.value()) for each in changes if each.get_key_element() == "scale"]
    scale = _read(f"scale/{[common.pop('scale'), *scales][-1]}")
    root: Any = OmegaConf.merge(scale, common, *_layers(name))
    for change in changes:
        if change.key_or_group.startswith(OF_SWEEP):
            key, value = change.key_or_group.removeprefix(OF_SWEEP), change.value()
            if key not in CHANGEABLE or change.is_sweep_override():
                allowed = ", ".join(f"{OF_SWEEP}{each}=[VALUE,…]" for each in CHANGEABLE)
                raise UserError(f"{change.input_line}: must be one of {allowed}")
            root[key] = value if isinstance(value, list) else [value]
    OmegaConf.resolve(root)
    node: Any = OmegaConf.to_container(OmegaConf.merge(root, root["at"].get(root.scale, {})))
    with_arms = [name for name, special in node["at"].items() if special.get("arms")]
    if with_arms and not node["arms"]:
        raise UserError(
            f"scale={node['scale']}: this sweep has no arms there; allowed: {', '.join(with_arms)}"
        )
    return _figure(name, node)


def _layers(name: str) -> list[dict[str, Any]]:
    """The files of a sweep: those that it is based on, and its own."""
    content = _read(f"sweep/{name}")
    return [*(_layers(content["based_on"]) if "based_on" in content else []), content]


def _read(file: str) -> dict[str, Any]:
    """A file of conf, ours or an outside package's. Raises UserError if there is none."""
    group, _, choice = file.partition("/")
    allowed = plugins.choices_by_group().get(group, [])
    found = plugins.conf_file(file)
    if found is None or (choice and choice not in allowed):
        raise UserError(f"{group}={choice}: no such choice; {meant(choice, allowed)}")
    return yaml.safe_load(found.read_text(encoding="utf-8"))


def claim_seeds(scale: str) -> list[int] | None:
    """The seeds that claims are judged on at a scale; None if they take the figures' own, and for
    ""."""
    return _read(f"scale/{scale}").get("claim_seeds") if scale else None


def claim_rates(scale: str) -> list[float]:
    """The learning rates that claims are judged at: first that of the scale's settings, which needs
    no override. Empty if the scale names none."""
    return [float(rate) for rate in _read(f"scale/{scale}").get("claim_rates", [])]


def points(figure: Figure | None, overrides: Iterable[str]) -> list[Point]:
    """Arms × grid as overrides: the first axis is the outermost loop, the arms the innermost.

    An override with several values, as in seed=0,1, is an axis; any override replaces the axis of
    its key. figure: None for a multirun, which has these axes alone. Raises SetByArm for an
    override of a key that an arm sets.
    """
    overrides = [*overrides]
    typed = _of_runs(overrides)
    grid = {
        key: [f"{key}={'null' if value is None else value}" for value in values]
        for key, values in (figure.grid if figure else {}).items()
    }
    axes = grid | {key: _lines(override) for key, override in typed.items()}
    chosen = (figure.chosen() if figure else {}) or {"": []}
    arms = {
        label: {o.get_key_element(): str(o.input_line) for o in parse(lines)}
        for label, lines in chosen.items()
    }
    for override, (label, arm) in itertools.product(typed.values(), arms.items()):
        if override.key_or_group in arm:
            raise SetByArm(
                f"{override.input_line}: the arm {label} sets {override.key_or_group}; "
                "choose arms with hydra.sweeper.only=[LABEL,…]"
            )
    divided_by = figure.divided_by(overrides) if figure else []
    found = []
    for lines in itertools.product(*axes.values()):
        cell = dict(zip(axes, lines, strict=True))
        heading = figure.heading(cell, divided_by) if figure else ""
        found += [Point(label, heading, {**cell, **arm}) for label, arm in arms.items()]
    return found


def _figure(name: str, node: dict[str, Any]) -> Figure:
    """The figure of the merged values of its files."""
    for metric in node["panels"]:
        if str(metric) not in node["axes"]:
            allowed = ", ".join(node["axes"])
            raise UserError(f"{OF_SWEEP}panels={metric}: no such choice; allowed: {allowed}")
    made = {
        "name": name,
        "title": _title(node),
        "caption": f"{node['caption']} {node['data'][node['setting']]}",
        "panels": [
            Panel(metric, **{"label": metrics.label(metric), **node["axes"][metric]})
            for metric in node["panels"]
        ],
        "hours": node["hours"][node["setting"]],
    }
    values = {key: (node | made)[key] for key in Figure.field_names()}
    return schema.made(Figure, values, OF_SWEEP)


def _title(node: dict[str, Any]) -> str:
    """The figure, its scale and, if the file names a topic, the data."""
    figure = " ".join(filter(None, [node["title"], node["titled"]]))
    if "topic" not in node:
        return figure
    return f"{figure}: {node['topic']} on {node['names'].get(node['setting'], node['setting'])}"


def _of_runs(overrides: Iterable[str]) -> dict[str, Override]:
    """The overrides of runs, by their keys."""
    parsed = {each.get_key_element(): each for each in parse(overrides)}
    return {key: each for key, each in parsed.items() if not _shapes_sweep(each)}


def _shapes_sweep(override: Override) -> bool:
    return override.is_hydra_override() or override.get_key_element() in SWEEP_KEYS


def _lines(override: Override) -> list[str]:
    if not override.is_sweep_override():
        return [str(override.input_line)]
    if not override.is_discrete_sweep() or isinstance(override.value(), Glob):
        raise UserError(f"{override.input_line}: cannot be swept; list the values, as in a=1,2")
    key = override.get_key_element()
    return [f"{key}={value}" for value in override.sweep_string_iterator()]
