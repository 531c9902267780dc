"""Figures whose cells are colours: maps of the gain, and the stability map with its edge."""

import itertools
import math
import re
import textwrap
from typing import Any

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.patches import Rectangle

from rec_experiments.analysis.figures.render import Drawing, page, styled
from rec_experiments.analysis.results import stability
from rec_experiments.analysis.results.figure import FigureRuns
from rec_experiments.analysis.results.summary import mean_and_ends, remarks
from rec_experiments.common.errors import UserError

Cell = tuple[Any, Any]  # values of the rows' and the columns' key
Values = dict[Cell, float]

COLORS = "RdYlBu"
EMPTY = "0.9"  # cells without runs
CELL, NARROW = (0.5, 0.34), (0.25, 0.21)  # inches of a cell with and without a number
LOWEST = 0.6  # inches of a panel
MARGINS = (0.35, 0.3)  # inches around a panel
OUTER = (0.7, 0.75)  # inches for the labels of the outer panels
DARK = 0.75  # of the largest colour, from which on numbers are white
LETTER = 0.06  # inches of the names of arms
WIDEST = 12.5  # inches of all panels side by side
BAR = 1.05  # inches of the colour bar
LABEL = 26  # letters in a line of the colour bar's label
LEAST = 0.05  # an on-policy gain below it has no share that could be kept
NAMES = {
    "optimizer.learning_rate": "learning rate",
    "sync": "age of the oldest data (steps)",
    "clip.low": "lower bound ε_low",
    "clip.high": "upper bound ε_high",
    "batch_size": "prompts per batch",
    "dataset.max_steps": "operations, at most",
    "model.warm_start.seed": "initial policy",
}


@styled
def draw(data: FigureRuns) -> Drawing:
    """A map of the gain, or of its difference to one arm's: panels, columns and rows are the keys
    that the figure names."""
    keys, base = _keys(data), data.map.get("against")
    others = [key for key in itertools.chain(*keys.values()) if key != "arm"]
    table, value = stability.gains(data, others), "gain"
    if base:
        table, value = stability.against(table, base, others), "difference"
    (across,), (down,) = keys["across"], keys["down"]
    panels = _values(table, keys["panels"])
    head = [*keys["panels"], down, across]
    means = table.groupby(head, sort=False)[value].agg(list)
    limit = max([0.05, *(abs(float(np.mean(gains))) for gains in means)])
    norm = TwoSlopeNorm(0.0, -limit, limit)
    columns, rows = _axis(table, across), _axis(table, down)
    figure, grid, bar = _grid(data, across, down, (len(panels), len(columns), len(rows)), CELL)
    for axes, panel in zip(grid, panels, strict=False):
        chosen = {
            (row, column): list(means.get((*panel, row, column), []))
            for row in rows
            for column in columns
        }
        colors = {cell: float(np.mean(gains)) for cell, gains in chosen.items() if gains}
        _paint(axes, colors, rows, columns, norm)
        _write(axes, chosen, rows, columns, limit)
        axes.set_title(_panel_title(keys["panels"], panel), fontsize=8.5)
    label = f"gain against {base}" if base else "mean accuracy of the second half − initial"
    _color_bar(figure, bar, norm, label)
    rows = [
        dict(zip(head, cell, strict=True)) | {"seeds": len(gains), **mean_and_ends(value, gains)}
        for cell, gains in means.items()
    ]
    statistics = pandas.DataFrame(rows)
    return Drawing(data.name, data.title, figure, table, statistics, _caption(data))


@styled
def draw_stability(data: FigureRuns) -> Drawing:
    """The stability map: a panel per method, the share of the on-policy gain that it keeps at each
    rate and age, and the edge beyond which it fails."""
    table = stability.with_on_policy(
        stability.gains(data, [stability.RATE, stability.AGE]), data.map.get("on_policy", {})
    )
    arms = [arm for arm in data.arms if arm in set(table["arm"])]
    kept = stability.kept(table, LEAST).set_index(["arm", stability.AGE, stability.RATE])
    found = stability.edges(table)
    edges = stability.means(found)
    columns, rows = _axis(table, stability.RATE), _axis(table, stability.AGE)
    if len(columns) < 2:
        raise UserError(f"{data.name}: needs finished runs at two or more learning rates")
    norm = Normalize(-1.0, 1.0)
    figure, grid, bar = _grid(
        data, stability.RATE, stability.AGE, (len(arms), len(columns), len(rows)), NARROW
    )
    for axes, arm in zip(grid, arms, strict=False):
        of_arm = kept.loc[arm]
        _paint(axes, of_arm["kept"].dropna().to_dict(), rows, columns, norm)
        _hatch(axes, list(of_arm.index[~of_arm["learns"]]), rows, columns)
        _draw_edge(
            axes, {age: edges[arm, age] for age in rows if (arm, age) in edges}, rows, columns
        )
        if "star" in data.map:
            _draw_star(axes, data.map["star"], rows, columns)
        axes.set_title(arm, fontsize=8.5)
    _color_bar(figure, bar, norm, "share of the on-policy gain that is kept")
    caption = f"{_caption(data)} {stability.READING}"
    return Drawing(data.name, data.title, figure, table, stability.edge_table(found), caption)


def _keys(data: FigureRuns) -> dict[str, list[str]]:
    """The keys of panels, across and down, each as a list."""
    wanted = {name: data.map.get(name, []) for name in ("panels", "across", "down")}
    return {name: [keys] if isinstance(keys, str) else list(keys) for name, keys in wanted.items()}


def _values(table: pandas.DataFrame, keys: list[str]) -> list[tuple[Any, ...]]:
    """The values of these keys in order of appearance, with equal first values side by side."""
    found = list(table[keys].drop_duplicates().itertuples(index=False, name=None))
    first = list(dict.fromkeys(value for value, *_ in found))
    return sorted(found, key=lambda values: first.index(values[0]))


def _axis(table: pandas.DataFrame, key: str) -> list[Any]:
    """The values of a key: numbers in order and after them what is no number; arms as they come."""
    values = table[key].unique().tolist()
    if key == "arm":
        return values[::-1]  # the first at the top
    return sorted(values, key=lambda value: (isinstance(value, str), value))


def _grid(
    data: FigureRuns, across: str, down: str, shape: tuple[int, int, int], cell: tuple[float, float]
) -> tuple[Any, list[Axes], Any]:
    """A page with a grid of panels, and a part for the colour bar. shape: the number of panels, and
    of columns and rows in each; cell: width and height in inches."""
    panels, columns, rows = shape
    labels = OUTER[0] + (LETTER * max(map(len, data.arms)) if down == "arm" else 0.0)
    width, height = cell[0] * columns + MARGINS[0], max(LOWEST, cell[1] * rows) + MARGINS[1]
    fit = max(1, min(panels, int((WIDEST - labels) / width)))
    lines = -(-panels // fit)
    side_by_side = -(-panels // lines)
    size = (width * side_by_side + labels, height * lines + OUTER[1])
    figure, place = page(size[0] + BAR, size[1], data.title, [])
    left, right = place.subfigures(1, 2, squeeze=False, width_ratios=(size[0], BAR))[0]
    left.supxlabel(NAMES.get(across, across), fontsize=8.5)
    label = "" if down == "arm" else NAMES.get(down, down)
    left.supylabel(textwrap.fill(label, int((size[1] - MARGINS[1]) / LETTER)), fontsize=8.5)
    grid = left.subplots(lines, side_by_side, squeeze=False, sharex=True, sharey=True).flatten()
    for axes in grid[panels:]:
        axes.set_axis_off()
    for axes in grid[max(0, panels - side_by_side) : panels]:  # the lowest of each column
        axes.tick_params(labelbottom=True)
    return figure, list(grid), right


def _caption(data: FigureRuns) -> str:
    return " ".join([data.caption, *remarks(data)])


def _paint(axes: Axes, values: Values, rows: list[Any], columns: list[Any], norm: Any) -> None:
    grid = np.array([[values.get((row, column), np.nan) for column in columns] for row in rows])
    axes.set_facecolor(EMPTY)
    axes.imshow(
        np.clip(grid, norm.vmin, norm.vmax), cmap=COLORS, norm=norm, origin="lower", aspect="auto"
    )
    axes.grid(visible=False)
    axes.set_xticks(range(len(columns)), [_tick(each) for each in columns], rotation=60, fontsize=7)
    axes.set_yticks(range(len(rows)), [_tick(each) for each in rows], fontsize=7)


def _tick(value: Any) -> str:
    """As in 1.2e-4."""
    if not isinstance(value, float):
        return str(value)
    return re.sub(r"\.?0*e-0*", "e-", f"{value:.2e}") if value < 1e-2 else f"{value:g}"


def _write(
    axes: Axes, cells_of: dict[Cell, list[float]], rows: list[Any], columns: list[Any], limit: float
) -> None:
    for (row, column), gains in cells_of.items():
        if gains:
            mean = float(np.mean(gains))
            axes.text(
                columns.index(column), rows.index(row), f"{mean:+.2f}", ha="center", va="center",
                color="white" if abs(mean) > DARK * limit else "black", fontsize=7,
            )  # fmt: skip


def _hatch(axes: Axes, chosen: list[Cell], rows: list[Any], columns: list[Any]) -> None:
    """Hatch cells whose on-policy run does not learn either."""
    for row, column in chosen:
        corner = (columns.index(column) - 0.5, rows.index(row) - 0.5)
        axes.add_patch(
            Rectangle(corner, 1, 1, facecolor="0.85", edgecolor="0.6", hatch="////", linewidth=0)
        )


def _draw_edge(
    axes: Axes, edges: dict[Any, stability.Mean], rows: list[Any], columns: list[Any]
) -> None:
    """The edge as a line through the rows, with its interval; an arrow where it leaves the grid."""
    places = np.log2(columns)
    numbers = np.arange(len(columns))
    points = []
    for row, each in edges.items():
        at = float(np.interp(each.mean, places, numbers))
        y = rows.index(row)
        if not each.bound:
            points.append((at, y))
            if each.interval:
                ends = np.interp(each.interval, places, numbers)
                axes.plot(ends, [y, y], color="black", lw=0.8)
        else:
            axes.plot(at, y, color="black", marker="<" if each.bound == "≤" else ">", ms=4)
    if points:
        axes.plot(*zip(*points, strict=True), color="black", lw=1.8, marker="o", ms=3)


def _draw_star(axes: Axes, star: dict[str, Any], rows: list[Any], columns: list[Any]) -> None:
    """Mark one age and rate, if they are within the grid."""
    places, place = np.log2(columns), math.log2(star["rate"])
    if star["age"] in rows and places[0] <= place <= places[-1]:
        at = float(np.interp(place, places, np.arange(len(columns))))
        axes.plot(at, rows.index(star["age"]), marker="*", color="black", ms=7, mfc="white")


def _panel_title(keys: list[str], panel: tuple[Any, ...]) -> str:
    return ", ".join(
        str(value) if key in ("arm", "column") else f"{NAMES.get(key, key)} {_tick(value)}"
        for key, value in zip(keys, panel, strict=True)
    )


def _color_bar(figure: Any, place: Any, norm: Any, label: str) -> None:
    axes = place.add_axes((0.1, 0.2, 0.2, 0.6))
    bar = figure.colorbar(ScalarMappable(norm, COLORS), cax=axes)
    bar.set_label(textwrap.fill(label, LABEL), fontsize=8)
    bar.ax.tick_params(labelsize=7)
