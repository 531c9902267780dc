"""The figure of a staleness sweep: final accuracy over the age of the data."""

import textwrap
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from scipy.optimize import isotonic_regression

from rec_experiments.analysis.figures import style
from rec_experiments.analysis.figures.render import Drawing, page, styled, unfinished
from rec_experiments.analysis.results import staleness
from rec_experiments.analysis.results.aggregate import CONFIDENCE
from rec_experiments.analysis.results.figure_data import FigureData
from rec_experiments.analysis.results.summary import count_of_seeds

METHODS_A_PANEL = 8  # more are hard to distinguish
ACROSS = 2  # panels
PANEL = (4.6, 2.9)  # inches, with the names of the lines
LINE = 0.062  # height of a name, as a share of the panel's
# Inches of a character of a line's name and of a tick, and of a panel's margins.
NAME_CHARACTER, TICK_CHARACTER, MARGINS = 0.058, 0.062, 0.9
NEAR_ZERO = 0.2  # share of the highest mean; an axis with a mean below it starts at 0
LABELS = {
    "offset": "offset: age of all data (batches)",
    "interval": "interval: batches from one policy",
    staleness.COLUMN: "",  # the ticks are names
}


@styled
def draw(data: FigureData) -> Drawing:
    """One panel per group of methods and form of staleness (offset or interval) with several ages.
    With two forms, each has a column of panels."""
    count = {form: len(staleness.ages(data, form)) for form in staleness.forms(data)}
    forms = [form for form, ages in count.items() if ages > 1] or list(count)
    found = {form: {line.arm: line for line in staleness.lines(data, form)} for form in forms}
    arms = [arm for arm in data.arms if any(arm in lines for lines in found.values())]
    # Groups of equal size: nine methods make five and four, not eight and one.
    groups = [list(row) for row in np.array_split(arms, max(1, -(-len(arms) // METHODS_A_PANEL)))]
    panels = [(group, form) for group in groups for form in forms]
    across = min(len(panels), ACROSS)
    down = -(-len(panels) // across)
    summary = staleness.summary(data)
    seeds = count_of_seeds(len(summary["seeds"]))
    room = PANEL[0] - MARGINS - NAME_CHARACTER * max(map(len, arms), default=0)
    lines = [line for of_form in found.values() for line in of_form.values()]
    points = [point for line in lines for point in line.points]
    limits = _limits(points, summary["start"]) if points else None
    caption = [
        data.caption,
        f"Mean and {100 * CONFIDENCE:.0f} % t interval of the final accuracy over {seeds}; "
        "dotted: the accuracy before training.",
        *(["Intervals that leave a panel are cut."] if _any_cut(points, limits) else []),
        *unfinished(data),
    ]
    looks = style.looks(data.arms)
    figure, place = page(PANEL[0] * across, PANEL[1] * down, data.title, [], " ".join(caption))
    grid = place.subplots(down, across, squeeze=False, sharey=True)
    for axes, (group, form) in zip(grid.flat, panels, strict=False):
        chosen = [found[form][arm] for arm in group if arm in found[form]]
        ages = [age for age, _ in staleness.ages(data, form)]
        _draw_panel(axes, chosen, ages, looks)
        _write_ticks(axes, [str(age) for age in summary["ages"][form]], room)
        if arms:
            axes.axhline(summary["start"], color="0.4", ls=":", lw=0.8, zorder=0)
        axes.set_xlabel(LABELS[form])
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("final accuracy")
    if limits:
        grid[0, 0].set_ylim(limits)
    for axes, (_, form) in zip(grid.flat, panels, strict=False):
        _write_names(axes, count[form] - 1)
    return Drawing(data.name, figure, staleness.tidy(data), summary, staleness.text(summary))


def _draw_panel(
    axes: Axes, chosen: list[staleness.Line], ages: list[float], looks: dict[str, style.Look]
) -> None:
    """Draw lines over equally spaced ages, with a small shift per method so that intervals show."""
    for number, line in enumerate(chosen):
        shift = 0.24 * (number / max(1, len(chosen) - 1) - 0.5)
        places = [ages.index(point.age) + shift for point in line.points]
        half = [
            (point.interval[1] - point.interval[0]) / 2 if point.interval else 0.0
            for point in line.points
        ]
        look = looks[line.arm]
        axes.errorbar(
            places,
            [point.mean for point in line.points],
            half,
            color=look.color,
            ls=look.dash,
            marker=look.marker,
            elinewidth=0.7,
            label=line.arm,
        )


def _limits(points: list[staleness.Point], start: float) -> tuple[float, float]:
    """Range of the accuracy in all panels: from the lowest to the highest mean and half a median
    interval more, so that one wide interval does not shrink the others. It includes 0 if a mean is
    near it."""
    means = [start, *(point.mean for point in points)]
    half = [(point.interval[1] - point.interval[0]) / 2 for point in points if point.interval]
    low, high = min(means), max(means)
    if low < NEAR_ZERO * high:
        low = 0.0
    beyond = max(0.05 * (high - low), float(np.median(half)) if half else 0.0, 0.01)
    return low - (beyond if low else 0.03 * high), high + beyond


def _any_cut(points: list[staleness.Point], limits: tuple[float, float] | None) -> bool:
    intervals = [point.interval for point in points if point.interval]
    return limits is not None and any(
        low < limits[0] or high > limits[1] for low, high in intervals
    )


def _write_ticks(axes: Axes, names: list[str], room: float) -> None:
    """Tick labels on an axis of about `room` inches, wrapped at spaces, and slanted if two of them
    would still touch."""
    each = room / len(names)
    characters = max(1, int(each / TICK_CHARACTER))
    written = [textwrap.fill(name, characters, break_long_words=False) for name in names]
    widths = [TICK_CHARACTER * (1 + max(map(len, name.splitlines()))) for name in written]
    aslant = any(one + other > 2 * each for one, other in pairwise(widths))
    axes.set_xticks(range(len(names)), written, rotation=45 if aslant else 0)
    if aslant:
        for label in axes.get_xticklabels():
            label.set(ha="right", rotation_mode="anchor")


def _write_names(axes: Axes, last: int) -> None:
    """Write each line's name next to the panel, in its colour, with a leader to the line's end. The
    leader of a line that ends before the `last` age is dotted."""
    ends = {str(container.get_label()): container[0] for container in axes.containers}
    low, high = axes.get_ylim()
    share = {
        name: (float(line.get_ydata()[-1]) - low) / (high - low) for name, line in ends.items()
    }
    for name, at in _apart(share).items() if share else ():
        x, y = (float(values[-1]) for values in ends[name].get_data())
        color = ends[name].get_color()
        axes.annotate(
            name,
            (x, y),
            xytext=(1.05, at),
            textcoords="axes fraction",
            color=color,
            fontsize=7.5,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": color, "lw": 0.5, "relpos": (0, 0.5),
                "ls": "-" if x > last - 0.5 else ":", "shrinkA": 1, "shrinkB": 3,
            },
        )  # fmt: skip


def _apart(wanted: dict[str, float]) -> dict[str, float]:
    """The heights closest to the wanted ones that keep their order, are at least LINE apart, and
    are within the panel."""
    names = sorted(wanted, key=lambda name: wanted[name])
    steps = LINE * np.arange(len(names))
    heights = isotonic_regression(np.array([wanted[name] for name in names]) - steps).x + steps
    highest = 1.0 - steps[::-1]
    return dict(zip(names, np.minimum(heights, highest).tolist(), strict=True))
