"""Draws figures of curves; writes figures as PNG, PDF, CSV (data), JSON and text (statistics)."""

import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from PIL import Image
from scipy.optimize import isotonic_regression

from rec_experiments.analysis.figures import style
from rec_experiments.analysis.figures.curves import SMOOTHED, tidy
from rec_experiments.analysis.results.figure import FigureRuns
from rec_experiments.analysis.results.formatting import readable
from rec_experiments.analysis.results.statistics import CONFIDENCE, band
from rec_experiments.analysis.results.summary import columns, releases_text, remarks, summary
from rec_experiments.common.files import write_atomic
from rec_experiments.sweeps import Panel

Legend = list[tuple[Any, str]]  # handle, label

DPI = 160  # of the PNG file
CELL = (3.0, 2.0)  # inches of a panel
NARROW, MANY = 2.4, 4  # its width where a row has so many
PANELS_A_ROW = 3  # in a figure whose runs have one schedule
LABEL_WIDTH = 24  # characters of an axis label next to a panel
MARKERS = 8  # on a mean curve, about
# Inches around and between panels, measured once; matplotlib's own layout takes half the time of a
# figure. A label of the vertical axis may have two lines.
LEFT, RIGHT, BOTTOM, TOP = 0.76, 0.14, 0.45, 0.34
ABOVE = 0.06  # the title
TITLE_LINE, WIDEST_TITLE = 0.17, 12.5  # a further line of the title; its longest line
HEADING = 0.2  # a line of the columns' titles
APART, ROWS_APART = 0.18, 0.2  # between panels that share axes
WITH_LABELS, ROWS_WITH_LABELS = LEFT + 0.1, BOTTOM + 0.12  # between panels with their own axes
# Inches of a character: of the name of a curve, of the title and of a title of a column.
CHARACTER, TITLE_CHARACTER, HEAD_CHARACTER = 0.066, 0.076, 0.071
NAME_LINE = 0.15  # inches between the names of two curves
NAME_AT = 0.4  # inches from a panel to the names of its curves, for lines that lead to them
CAPTION_WIDTH = 100  # characters of a line in the text file

styled = matplotlib.rc_context(style.RC)  # decorates functions that draw


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure with its data. table: one row per point. statistics: a table with the ends of
    intervals as NAME_low and NAME_high. caption: how to read the picture and the statistics, shown
    beside it and not in it."""

    name: str
    title: str
    figure: Figure
    table: pandas.DataFrame
    statistics: pandas.DataFrame
    caption: str

    @property
    def text(self) -> str:
        """The statistics with title and caption."""
        caption = textwrap.fill(self.caption, CAPTION_WIDTH, break_on_hyphens=False)
        return "\n".join([self.title, "", *readable(self.statistics), "", caption, ""])


def page(
    width: float,
    height: float,
    title: str,
    legend: Legend,
    layout: Literal["constrained"] | None = "constrained",
) -> tuple[Figure, SubFigure]:
    """A figure with a title, width x height inches for panels, and a legend below them.

    layout: matplotlib's, or None if the caller places the panels. Returns the figure and its part
    for the panels.
    """
    columns = legend_columns(width, [label for _, label in legend])
    legend_lines = -(-len(legend) // columns) if legend else 0
    parts = (height, 0.2 * legend_lines + 0.1 if legend else 0.01)
    figure = Figure(figsize=(width, sum(parts)), layout=layout)
    FigureCanvasAgg(figure)
    panels, below = figure.subfigures(2, 1, squeeze=False, height_ratios=parts)[:, 0]
    if layout:  # leaves room for a second line
        title = _wrapped(title, width)
    panels.suptitle(title, fontsize=10, y=None if layout else 1 - ABOVE / height)
    if legend:
        handles, labels = zip(*legend, strict=True)
        below.legend(handles, labels, loc="center", ncols=columns, frameon=False, handlelength=3)
    return figure, panels


def _wrapped(title: str, width: float) -> str:
    """The title in lines that fit into `width` inches."""
    return textwrap.fill(title, int((width - 0.3) / TITLE_CHARACTER), break_on_hyphens=False)


def legend_columns(width: float, labels: Sequence[str]) -> int:
    """The number of legend entries per line of `width` inches, with lines of equal length."""
    if not labels:
        return 1
    entry = max(map(len, labels)) * CHARACTER + 0.75
    fit = max(1, min(len(labels), int(width / entry)))
    lines = -(-len(labels) // fit)
    return -(-len(labels) // lines)


@styled
def draw(data: FigureRuns, window: int) -> Drawing:
    """A figure of curves with a row per metric and a column per schedule, as in the paper.

    The names of the methods stand beside their curves, or in a legend if they are too many. window:
    steps in the running averages, of `curves.SMOOTHED`.
    """
    looks = style.looks(data.arms)
    points = tidy(data, window)
    recorded = [panel for panel in data.panels if panel.metric in set(points["metric"])]
    shown = recorded or data.panels  # an archive lacks metrics
    rows, columns = len(shown), len(data.columns)
    by_column = columns > 1
    if not by_column:
        rows, columns = -(-rows // PANELS_A_ROW), min(rows, PANELS_A_ROW)
    beside = len(data.arms) <= CELL[1] * 0.8 / NAME_LINE
    legend: Legend = [] if beside else [(_handle(look), arm) for arm, look in looks.items()]
    aside = NAME_AT + CHARACTER * max(map(len, data.arms)) if beside else 0.0
    titled = min(WIDEST_TITLE, len(data.title) * TITLE_CHARACTER + 0.3)
    cell = CELL[0] if columns < MANY else NARROW
    width = max(6.6, cell * columns + 0.4 + aside, titled)
    heads = [
        each if len(each) * HEAD_CHARACTER < cell else each.replace(", ", "\n")
        for each in data.columns
    ]
    title = _wrapped(data.title, width)
    above = TITLE_LINE * title.count("\n")
    heading = HEADING * (1 + max(head.count("\n") for head in heads)) if by_column else 0.0
    height = CELL[1] * rows + 0.3 + heading + above
    figure, panels = page(width, height, title, legend, layout=None)
    grid = panels.subplots(
        rows,
        columns,
        squeeze=False,
        sharex=by_column,
        sharey="row" if by_column else False,
        gridspec_kw=_places(width, height, rows, columns, heading, aside, above),
    )
    cells = [
        (panel, *column) for panel in shown for column in zip(data.columns, heads, strict=True)
    ]
    for axes, (panel, column, head) in zip(grid.flat, cells, strict=False):
        here = points[(points["metric"] == panel.metric) & (points["column"] == column)]
        _draw_panel(axes, here, looks, panel.log)
        _label_panel(axes, panel, head if by_column else None)
    for axes in grid.flat[len(cells) :]:
        axes.set_axis_off()
    if beside:
        _name_curves(grid[0, -1], looks)
    missing = [panel.label for panel in data.panels if panel not in shown]
    caption = " ".join([data.caption, *_reading(data, window, missing)])
    return Drawing(data.name, data.title, figure, points, summary(data), caption)


def _handle(look: style.Look) -> Line2D:
    return Line2D([], [], color=look.color, linestyle=look.dash, marker=look.marker)


def _name_curves(axes: Axes, looks: dict[str, style.Look]) -> None:
    """Write the name of each curve to the right of a panel, near its end, with a line to it.

    Methods without a curve in this panel are named below the others.
    """
    figure, box = axes.get_figure(root=True), axes.get_window_extent()
    assert figure is not None
    width, height = box.width / figure.dpi, box.height / figure.dpi
    axes.get_xlim(), axes.get_ylim()  # sets the limits, which the transformation below depends on
    to_panel = axes.transData + axes.transAxes.inverted()
    lines = [line for line in axes.get_lines() if line.get_marker() != "None"]
    ends = {}
    for line, arm in zip(lines, looks, strict=True):
        points = np.column_stack([line.get_xdata(), line.get_ydata()])
        if len(points := points[np.isfinite(points).all(1)]):
            ends[arm] = to_panel.transform(points[-1]).clip(0, 1)
    heights = {arm: float(ends[arm][1]) if arm in ends else -1.0 for arm in looks}
    order = sorted(looks, key=heights.__getitem__)
    places = apart(np.array([heights[arm] for arm in order]), NAME_LINE / height)
    name, marker = 1 + NAME_AT / width, 1 + 0.75 * NAME_AT / width
    for arm, y in zip(order, places, strict=True):
        look = looks[arm]
        beside: dict[str, Any] = {
            "transform": axes.transAxes, "clip_on": False, "color": look.color
        }  # fmt: skip
        if arm in ends:
            axes.plot([ends[arm][0], marker], [ends[arm][1], y], lw=0.6, alpha=0.6, **beside)
        axes.plot([marker], [y], marker=look.marker, linestyle="", **beside)
        axes.text(name, y, arm, va="center", fontsize=8.5, transform=axes.transAxes)


def apart(wanted: np.ndarray, distance: float) -> np.ndarray:
    """The places nearest to `wanted`, which are in order, that are `distance` apart and, if there
    is room, between 0 and 1."""
    steps = distance * np.arange(len(wanted))
    found = isotonic_regression(np.clip(wanted, 0, 1) - steps).x
    return np.clip(found, 0, max(0.0, 1 - steps[-1])) + steps


def _places(
    width: float,
    height: float,
    rows: int,
    columns: int,
    heading: float,
    aside: float,
    above: float,
) -> dict[str, float]:
    """The keywords of matplotlib's GridSpec for a grid of panels on width x height inches.

    heading: inches of the columns' titles, 0 if each panel has its own axes. aside, above: inches
    that stay free at the right, and for the further lines of the title.
    """
    top = TOP + heading + above
    across, down = (APART, ROWS_APART) if heading else (WITH_LABELS, ROWS_WITH_LABELS)
    panel_width = (width - LEFT - RIGHT - aside - across * (columns - 1)) / columns
    panel_height = (height - top - BOTTOM - down * (rows - 1)) / rows
    return {
        "left": LEFT / width,
        "right": 1 - (RIGHT + aside) / width,
        "bottom": BOTTOM / height,
        "top": 1 - top / height,
        "wspace": across / panel_width,
        "hspace": down / panel_height,
    }


def _draw_panel(
    axes: Axes, points: pandas.DataFrame, looks: dict[str, style.Look], log: bool
) -> None:
    """points: as of `curves.tidy`, of one metric and column."""
    for place, (arm, look) in enumerate(looks.items()):
        mean = band(points[points["arm"] == arm].pivot(index="step", columns="run", values="drawn"))
        axes.plot(
            mean.index,
            mean["mean"],
            color=look.color,
            linestyle=look.dash,
            marker=look.marker,
            zorder=look.zorder,
            markevery=marker_places(len(mean), place, len(looks)),
        )
        if mean["low"].notna().any():
            _draw_band(axes, mean, look.color, log)
    if log and (points["drawn"] > 0).any():
        axes.set_yscale("log", nonpositive="clip")
        axes.minorticks_off()


def _draw_band(axes: Axes, band: pandas.DataFrame, color: str, log: bool) -> None:
    """Draw an interval. It does not widen the range of the axes, which that of the curves sets.

    log: leave out the steps at which the interval reaches 0.
    """
    at, low, high = band.index.to_numpy(), band["low"].to_numpy(), band["high"].to_numpy()
    drawn = low > 0 if log else np.isfinite(low)
    parts = np.split(np.arange(len(at)), np.flatnonzero(np.diff(drawn)) + 1)
    outlines = [
        np.column_stack([np.r_[at[part], at[part[::-1]]], np.r_[low[part], high[part[::-1]]]])
        for part in parts
        if drawn[part[0]]
    ]
    area = PolyCollection(outlines, facecolors=color, alpha=0.15, linewidths=0)
    axes.add_collection(area, autolim=False)


def marker_places(points: int, place: int, arms: int) -> tuple[int, int]:
    """First marker and distance of the next. They differ by arm, as curves may coincide."""
    every = max(2, points // MARKERS)
    return place * max(1, every // arms) % every, every


def _label_panel(axes: Axes, panel: Panel, head: str | None) -> None:
    """head: title of the column over the first row; None if each panel has its own axes."""
    spec = axes.get_subplotspec()
    assert spec is not None
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    if head and spec.is_first_row():
        axes.set_title(head)
    if head is None or spec.is_first_col():
        axes.set_ylabel(textwrap.fill(panel.label, LABEL_WIDTH))
    if head is None or spec.is_last_row():
        axes.set_xlabel("gradient steps")


def _reading(data: FigureRuns, window: int, missing: list[str]) -> list[str]:
    """Sentences on how to read the picture. missing: labels of panels without a value."""
    notes = [f"{head}: {of.meaning}." for head, of in columns(data).items()]
    notes += [f"paired: difference of the area from that of {data.arms[0]}, paired by seed."]
    notes += [releases_text(data.steps)]
    seeds = {
        data.select(arm, column)["run"].nunique() for arm in data.arms for column in data.columns
    }
    several = sorted(seeds - {0, 1})
    if several:
        count = " to ".join(map(str, dict.fromkeys((several[0], several[-1]))))
        notes.append(
            f"Lines and bands: mean and {100 * CONFIDENCE:.0f} % t interval over {count} seeds, at "
            "the steps that all of them have."
        )
    smoothed = " and ".join(panel.label for panel in data.panels if panel.metric in SMOOTHED)
    if window > 1 and smoothed:
        notes.append(f"{smoothed[0].upper()}{smoothed[1:]}: running average of {window} steps.")
    if any(panel.log for panel in data.panels):
        notes.append("Logarithmic axes show no zeros, and no band that reaches zero.")
    if missing:
        notes.append(f"Not recorded in these runs: {', '.join(missing)}.")
    return [*filter(None, notes), *remarks(data)]


def write(drawing: Drawing, folder: Path) -> list[Path]:
    """Write the figure's five files, each atomically, and return their paths."""
    files = {
        "png": png(drawing.figure, DPI),
        "pdf": _pdf(drawing.figure),
        "csv": drawing.table.to_csv(index=False).encode(),
        "json": drawing.statistics.to_json(orient="records", force_ascii=False, indent=2).encode(),
        "txt": drawing.text.encode(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{drawing.name}.{suffix}" for suffix in files]
    for path, content in zip(paths, files.values(), strict=True):
        write_atomic(path, content)
    return paths


@styled
def png(figure: Figure, dpi: int, quick: bool = False) -> bytes:
    """The picture with a palette of 256 colours, at a third of the size and without a visible
    difference. quick: overlapping pale areas may be a shade off."""
    method = Image.Quantize.FASTOCTREE if quick else Image.Quantize.MEDIANCUT
    canvas = FigureCanvasAgg(figure)
    figure.dpi = dpi
    canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    buffer = io.BytesIO()
    picture.quantize(256, method).save(buffer, format="png", optimize=not quick)
    return buffer.getvalue()


@styled
def _pdf(figure: Figure) -> bytes:
    """The same bytes each time, without a date."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="pdf", dpi=DPI, metadata={"CreationDate": None})
    return buffer.getvalue()
