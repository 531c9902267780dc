"""From numbers to files: PNG, PDF, the data as CSV, the statistics as JSON and text."""

import csv
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from PIL import Image

from rec_experiments.analysis.figures import style
from rec_experiments.analysis.figures.curves import SMOOTHED, curve, tidy
from rec_experiments.analysis.results.aggregate import CONFIDENCE, band
from rec_experiments.analysis.results.figure_data import FigureData
from rec_experiments.analysis.results.formatting import to_json
from rec_experiments.analysis.results.runs import Row
from rec_experiments.analysis.results.summary import remarks, summary, summary_text
from rec_experiments.cli.command import writing
from rec_experiments.files import write_atomic
from rec_experiments.sweeps import Panel

Legend = list[tuple[Any, str]]  # handle, label

DPI = 160  # of a file
CELL = (3.0, 2.0)  # inches of one panel
PANELS_A_ROW = 3  # where a figure has one column of runs
LABEL_WIDTH = 24  # characters of an axis label that fit beside a panel
MARKERS = 8  # about so many on a mean curve
SINGLE: dict[str, Any] = {"lw": 0.6, "alpha": 0.3, "zorder": 1.5}  # runs, below all means
MEANS = 3  # their height on the page
# Inches around the panels of a figure, and between them: measured once, so that no solver looks for
# them in each picture. A label of the vertical axis may have two lines.
LEFT, RIGHT, BOTTOM, TOP = 0.76, 0.14, 0.45, 0.34
ABOVE = 0.06  # the title
HEADING = 0.2  # over the first row, where columns have titles
APART, ROWS_APART = 0.18, 0.2  # panels that share their axes
WITH_LABELS, ROWS_WITH_LABELS = LEFT + 0.1, BOTTOM + 0.12  # those that have axes of their own
# Inches that text takes: a character of the legend, of the title, and of the caption, whose lines
# are apart.
CHARACTER, TITLE_CHARACTER, CAPTION_CHARACTER, CAPTION_LINE = 0.066, 0.076, 0.0605, 0.136


@dataclass(frozen=True, slots=True)
class Drawing:
    """A finished figure with the numbers in it. table: tidy rows; summary: text for people."""

    name: str
    figure: Figure
    table: list[Row]
    statistics: dict[str, Any]
    summary: str


def page(
    width: float,
    height: float,
    title: str,
    legend: Legend,
    caption: str,
    layout: Literal["constrained"] | None = "constrained",
) -> tuple[Figure, SubFigure]:
    """A page of width x height inches for panels, grown by what legend and caption need.

    layout: matplotlib's, None for panels that are told their places. Returns the figure and the
    part of it that the panels go to.
    """
    columns = legend_columns(width, [label for _, label in legend])
    legend_lines = -(-len(legend) // columns) if legend else 0
    characters = int((width - 0.3) / CAPTION_CHARACTER)
    text = textwrap.fill(caption, characters, break_on_hyphens=False)  # names have hyphens
    caption_height = CAPTION_LINE * (text.count("\n") + 1) + 0.1
    legend_height = 0.2 * legend_lines + 0.1 if legend else 0.01
    parts = (height, legend_height, caption_height)
    figure = Figure(figsize=(width, sum(parts)), layout=layout)
    FigureCanvasAgg(figure)
    panels, middle, bottom = figure.subfigures(3, 1, squeeze=False, height_ratios=parts)[:, 0]
    if layout:  # which makes room for a second line
        title = textwrap.fill(title, int((width - 0.3) / TITLE_CHARACTER), break_on_hyphens=False)
    panels.suptitle(title, fontsize=10, y=None if layout else 1 - ABOVE / height)
    if legend:
        handles, labels = zip(*legend, strict=True)
        middle.legend(handles, labels, loc="center", ncols=columns, frameon=False, handlelength=3)
    bottom.text(0.15 / width, 1, text, va="top", fontsize=8, color="#333333", linespacing=1.15)
    return figure, panels


def legend_columns(width: float, labels: Sequence[str]) -> int:
    """As many legend entries side by side as fit into `width` inches, evenly over the lines."""
    if not labels:
        return 1
    entry = max(map(len, labels)) * CHARACTER + 0.75
    fit = max(1, min(len(labels), int(width / entry)))
    lines = -(-len(labels) // fit)
    return -(-len(labels) // lines)


def draw(data: FigureData, window: int) -> Drawing:
    """The figure of a sweep: a row a metric and a column a setting, as the paper lays it out."""
    looks = style.looks(data.arms)
    drawn = {run.arm for run in data.runs if run.rows}
    legend: Legend = [
        (
            Line2D([], [], color=look.color, linestyle=look.dash, marker=look.marker),
            arm if arm in drawn else f"{arm} (no run)",
        )
        for arm, look in looks.items()
    ]
    rows, columns = len(data.panels), len(data.columns)
    by_column = columns > 1
    if not by_column:
        rows, columns = -(-rows // PANELS_A_ROW), min(rows, PANELS_A_ROW)
    width, height = max(6.6, CELL[0] * columns + 0.4), CELL[1] * rows + 0.5
    with matplotlib.rc_context(style.RC):
        figure, panels = page(
            width,
            height,
            data.title,
            legend,
            " ".join(filter(None, [data.caption, *_reading(data, window), *remarks(data)])),
            layout=None,
        )
        grid = panels.subplots(
            rows,
            columns,
            squeeze=False,
            sharex=by_column,
            sharey="row" if by_column else False,
            gridspec_kw=_places(width, height, rows, columns, by_column),
        )
        cells = [(panel, column) for panel in data.panels for column in data.columns]
        for axes, (panel, column) in zip(grid.flat, cells, strict=False):
            _draw_panel(axes, data, panel, column, window)
            _label_panel(axes, panel, column if by_column else None)
        for axes in grid.flat[len(cells) :]:
            axes.set_axis_off()
    found = summary(data)
    return Drawing(data.name, figure, list(tidy(data, window)), found, summary_text(found))


def _places(width: float, height: float, rows: int, columns: int, shared: bool) -> dict[str, float]:
    """Where a grid of panels lies on width x height inches, as matplotlib's GridSpec has it.

    shared: rows and columns share their axes, and columns have titles.
    """
    top = TOP + HEADING * shared
    across, down = (APART, ROWS_APART) if shared else (WITH_LABELS, ROWS_WITH_LABELS)
    panel_width = (width - LEFT - RIGHT - across * (columns - 1)) / columns
    panel_height = (height - top - BOTTOM - down * (rows - 1)) / rows
    return {
        "left": LEFT / width,
        "right": 1 - RIGHT / width,
        "bottom": BOTTOM / height,
        "top": 1 - top / height,
        "wspace": across / panel_width,
        "hspace": down / panel_height,
    }


def _draw_panel(axes: Axes, data: FigureData, panel: Panel, column: str, window: int) -> None:
    positive = False
    for place, (arm, look) in enumerate(style.looks(data.arms).items()):
        curves = [curve(run.rows, panel.metric, window) for run in data.select(arm, column)]
        for steps, values in curves if len(curves) > 1 else []:
            axes.plot(steps, values, color=look.color, linestyle=look.dash, **SINGLE)
        mean = band(curves)
        axes.plot(
            mean.steps,
            mean.mean,
            color=look.color,
            linestyle=look.dash,
            marker=look.marker,
            markevery=marker_places(len(mean.steps), place, len(data.arms)),
            zorder=MEANS,
        )
        if mean.interval:
            _draw_band(axes, mean.steps, mean.interval, look.color, panel.log)
        positive |= any(value > 0 for _, values in curves for value in values)
    if panel.log and positive:
        axes.set_yscale("log", nonpositive="clip")


def _draw_band(
    axes: Axes, steps: list[int], interval: tuple[np.ndarray, np.ndarray], color: str, log: bool
) -> None:
    """The axes' range is that of the curves: a band over three seeds is cut where it leaves it.

    log: where it reaches 0 it would go down for ever, and is left out.
    """
    low, high = interval
    drawn = low > 0 if log else np.isfinite(low)
    parts = np.split(np.arange(len(steps)), np.flatnonzero(np.diff(drawn)) + 1)
    at = np.array(steps)
    outlines = [
        np.column_stack([np.r_[at[part], at[part[::-1]]], np.r_[low[part], high[part[::-1]]]])
        for part in parts
        if drawn[part[0]]
    ]
    area = PolyCollection(outlines, facecolors=color, alpha=0.15, linewidths=0)
    axes.add_collection(area, autolim=False)


def marker_places(points: int, place: int, arms: int) -> tuple[int, int]:
    """First marker and distance to the next, apart for each arm: curves may coincide."""
    every = max(2, points // MARKERS)
    return place * max(1, every // arms) % every, every


def _label_panel(axes: Axes, panel: Panel, column: str | None) -> None:
    """column: title over the first row, or None where every panel stands for itself."""
    spec = axes.get_subplotspec()
    assert spec is not None
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    if column and spec.is_first_row():
        axes.set_title(column)
    if column is None or spec.is_first_col():
        axes.set_ylabel(textwrap.fill(panel.label, LABEL_WIDTH))
    if column is None or spec.is_last_row():
        axes.set_xlabel("gradient steps")


def _reading(data: FigureData, window: int) -> list[str]:
    """How to read the picture, as far as it applies."""
    notes = []
    seeds = {len(data.select(arm, column)) for arm in data.arms for column in data.columns}
    several = sorted(seeds - {0, 1})
    if several:
        count = " to ".join(map(str, dict.fromkeys((several[0], several[-1]))))
        notes.append(
            f"Thick lines and bands: mean and {100 * CONFIDENCE:.0f} % t interval over {count} "
            "seeds, at the steps that all of them have; thin lines: single runs."
        )
    if window > 1 and any(panel.metric in SMOOTHED for panel in data.panels):
        notes.append(f"Training reward: running average of {window} steps.")
    if any(panel.log for panel in data.panels):
        notes.append("A zero lies below a logarithmic axis; a band that reaches 0 is left out.")
    return notes


def write(drawing: Drawing, folder: Path) -> list[Path]:
    """Write the figure's five files, each whole or not at all. Raises UserError if it cannot."""
    files = {
        "png": png(drawing.figure, DPI),
        "pdf": _pdf(drawing.figure),
        "csv": _csv(drawing.table),
        "json": to_json(drawing.statistics),
        "txt": drawing.summary.encode(),
    }
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for suffix, content in files.items():
            write_atomic(folder / f"{drawing.name}.{suffix}", content)
    return [folder / f"{drawing.name}.{suffix}" for suffix in files]


def png(figure: Figure, dpi: int, quick: bool = False) -> bytes:
    """The picture with a palette of 256 colours: a third of the size, no visible difference; where
    it must be `quick`, pale areas that overlap may be a shade off."""
    method = Image.Quantize.FASTOCTREE if quick else Image.Quantize.MEDIANCUT
    canvas = FigureCanvasAgg(figure)
    with matplotlib.rc_context(style.RC):
        figure.dpi = dpi
        canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    buffer = io.BytesIO()
    picture.quantize(256, method).save(buffer, format="png", optimize=not quick)
    return buffer.getvalue()


def _pdf(figure: Figure) -> bytes:
    """The same bytes each time: no date in the file."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(style.RC):
        figure.savefig(buffer, format="pdf", dpi=DPI, metadata={"CreationDate": None})
    return buffer.getvalue()


def _csv(table: list[Row]) -> bytes:
    buffer = io.StringIO()
    if table:
        writer = csv.DictWriter(buffer, list(table[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)
    return buffer.getvalue().encode()
