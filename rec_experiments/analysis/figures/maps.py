"""Figures whose cells are colours: maps of the gain, and the stability map with its edge."""

import re
import textwrap
from typing import Any

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from rec_experiments.analysis.figures.render import Drawing, page, styled
from rec_experiments.analysis.results import stability
from rec_experiments.analysis.results.figure import FigureRuns, mean_and_ends, remarks
from rec_experiments.analysis.results.stability import AGE, RATE
from rec_experiments.common.errors import UserError

COLORS = "RdYlBu"
EMPTY = "0.9"  # cells without runs
CELL, NARROW = (0.5, 0.34), (0.25, 0.21)  # inches of a cell with and without a number
LOWEST = 0.6  # inches of a panel
MARGINS = (0.35, 0.3)  # inches around a panel
OUTER = (2.0, 0.75)  # inches for the labels of the outer panels and the colour bar
WIDEST = 14.0  # inches of all panels side by side
DARK = 0.75  # of the largest colour, from which on numbers are white
LETTER = 0.06  # inches
BAR_LABEL = 26  # letters in a line of the colour bar's label
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
    named, across, down = (data.map[name] for name in ("panels", "across", "down"))
    keys, base = [named] if isinstance(named, str) else named, data.map.get("against")
    others = [key for key in (*keys, across, down) if key != "arm"]
    table, value = stability.gains(data, others), "gain"
    if base:
        table, value = stability.against(table, base, others), "difference"
    cells = table.groupby([*keys, down, across], sort=False)[value]
    means = cells.mean()
    limit = max(0.05, float(means.abs().max()))
    label = f"gain against {base}" if base else "mean accuracy of the second half − initial"
    grids = {
        _panel_title(keys, panel): means.xs(panel, level=keys).unstack()
        for panel in _values(table, keys)
    }
    norm = TwoSlopeNorm(0.0, -limit, limit)
    figure, panels = _panels(data, down, across, table, grids, CELL, norm, label)
    for axes, grid in panels:
        values = grid.to_numpy(dtype=float)
        for y, x in np.argwhere(np.isfinite(values)):
            mean = values[y, x]
            color = "white" if abs(mean) > DARK * limit else "black"
            axes.text(x, y, f"{mean:+.2f}", ha="center", va="center", color=color, fontsize=7)
    rows = [
        dict(zip(means.index.names, cell, strict=True))
        | {"seeds": len(gains), **mean_and_ends(value, [*gains])}
        for cell, gains in cells
    ]
    statistics, caption = pandas.DataFrame(rows), " ".join([data.caption, *remarks(data)])
    return Drawing(data.name, data.title, figure, table, statistics, caption)


@styled
def draw_stability(data: FigureRuns) -> Drawing:
    """The stability map: a panel per method, the share of the on-policy gain that it keeps at each
    rate and age, and the edge beyond which it fails."""
    table = stability.with_on_policy(
        stability.gains(data, [RATE, AGE]), data.map.get("on_policy", {})
    )
    if table[RATE].nunique() < 2:
        raise UserError(f"{data.name}: needs finished runs at two or more learning rates")
    kept = stability.kept(table, LEAST).set_index(["arm", AGE, RATE])
    found = stability.edges(table)
    edges = stability.means(found)
    grids = {arm: kept.loc[arm]["kept"].unstack() for arm in data.arms if arm in set(table["arm"])}
    label, norm = "share of the on-policy gain that is kept", Normalize(-1.0, 1.0)
    figure, panels = _panels(data, AGE, RATE, table, grids, NARROW, norm, label)
    for (arm, _), (axes, grid) in zip(grids.items(), panels, strict=True):
        fails = kept.loc[arm]["learns"].unstack().reindex_like(grid).eq(False)
        for y, x in np.argwhere(fails.to_numpy()):  # cells whose on-policy run learns nothing
            axes.add_patch(
                Rectangle((x - 0.5, y - 0.5), 1, 1, fc="0.85", ec="0.6", hatch="////", lw=0)
            )
        of_arm = {age: edges[arm, age] for age in grid.index if (arm, age) in edges}
        _draw_edge(axes, of_arm, grid)
        if star := data.map.get("star"):  # one age and rate
            at, lowest, highest = np.log2([star["rate"], *grid.columns[[0, -1]]])
            if star["age"] in grid.index and lowest <= at <= highest:
                y = grid.index.get_loc(star["age"])
                axes.plot(_place(at, grid), y, marker="*", color="black", ms=7, mfc="white")
    caption = " ".join([data.caption, *remarks(data), stability.READING])
    return Drawing(data.name, data.title, figure, table, stability.edge_table(found), caption)


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


def _panels(
    data: FigureRuns,
    down: str,
    across: str,
    table: pandas.DataFrame,
    grids: dict[str, pandas.DataFrame],
    cell: tuple[float, float],
    norm: Normalize,
    label: str,
) -> tuple[Figure, list[tuple[Axes, pandas.DataFrame]]]:
    """A figure with a panel for each grid of colours, and each panel with its grid, whose rows and
    columns are all values of the keys `down` and `across`. cell: width and height in inches; label:
    of the colours."""
    rows, columns = _axis(table, down), _axis(table, across)
    width = cell[0] * len(columns) + MARGINS[0]
    height = max(LOWEST, cell[1] * len(rows)) + MARGINS[1]
    outer = OUTER[0] + (LETTER * max(map(len, data.arms)) if down == "arm" else 0.0)
    fit = max(1, min(len(grids), int((WIDEST - outer) / width)))
    lines = -(-len(grids) // fit)
    side_by_side = -(-len(grids) // lines)
    total = height * lines + OUTER[1]
    figure = page(width * side_by_side + outer, total, data.title, [])
    figure.supxlabel(NAMES.get(across, across), fontsize=8.5)
    if down != "arm":
        name = textwrap.fill(NAMES.get(down, down), int((total - MARGINS[1]) / LETTER))
        figure.supylabel(name, fontsize=8.5)
    places = figure.subplots(lines, side_by_side, squeeze=False, sharex=True, sharey=True).flatten()
    bar = figure.colorbar(ScalarMappable(norm, COLORS), ax=places.tolist(), aspect=12, pad=0.02)
    bar.set_label(textwrap.fill(label, BAR_LABEL), fontsize=8)
    bar.ax.tick_params(labelsize=7)
    for axes in places[len(grids) :]:
        axes.set_axis_off()
    panels = []
    for axes, (title, values) in zip(places, grids.items(), strict=False):
        grid = values.reindex(index=rows, columns=columns)
        axes.set_facecolor(EMPTY)
        colors = np.clip(grid.to_numpy(dtype=float), norm.vmin, norm.vmax)
        axes.imshow(colors, cmap=COLORS, norm=norm, origin="lower", aspect="auto")
        axes.grid(visible=False)
        axes.set_xticks(range(len(columns)), map(_tick, columns), rotation=60, fontsize=7)
        axes.set_yticks(range(len(rows)), map(_tick, rows), fontsize=7)
        axes.set_title(textwrap.fill(title, int(width / LETTER)), fontsize=8.5)
        panels.append((axes, grid))
    for axes in places[max(0, len(grids) - side_by_side) : len(grids)]:  # the lowest of each column
        axes.tick_params(labelbottom=True)
    return figure, panels


def _tick(value: Any) -> str:
    """As in 1.2e-4."""
    if not isinstance(value, float):
        return str(value)
    return re.sub(r"\.?0*e-0*", "e-", f"{value:.2e}") if value < 1e-2 else f"{value:g}"


def _draw_edge(axes: Axes, edges: dict[Any, stability.Mean], grid: pandas.DataFrame) -> None:
    """The edge as a line through the rows, with its interval; an arrow where it leaves the grid."""
    points = []
    for row, each in edges.items():
        at, y = _place(each.mean, grid), grid.index.get_loc(row)
        if each.bound:
            axes.plot(at, y, color="black", marker="<" if each.bound == "≤" else ">", ms=4)
            continue
        points.append((at, y))
        if each.interval:
            ends = [_place(end, grid) for end in each.interval]
            axes.plot(ends, [y, y], color="black", lw=0.8)
    if points:
        axes.plot(*zip(*points, strict=True), color="black", lw=1.8, marker="o", ms=3)


def _place(log2: float, grid: pandas.DataFrame) -> float:
    """The place of a rate between the columns of a grid."""
    return float(np.interp(log2, np.log2(grid.columns), np.arange(grid.shape[1])))


def _panel_title(keys: list[str], panel: tuple[Any, ...]) -> str:
    return ", ".join(
        str(value) if key in ("arm", "column") else f"{NAMES.get(key, key)} {_tick(value)}"
        for key, value in zip(keys, panel, strict=True)
    )
