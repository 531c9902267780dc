"""Draws figures of curves; writes figures as PNG, PDF, CSV (data), JSON and text (statistics)."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from PIL import Image

from rec_experiments.analysis.figures import style
from rec_experiments.analysis.results.figure import (
    FigureRuns,
    columns,
    releases_text,
    remarks,
    summary,
)
from rec_experiments.analysis.results.formatting import readable
from rec_experiments.analysis.results.statistics import CONFIDENCE, band
from rec_experiments.common.files import write_atomic

Legend = Sequence[tuple[Any, str]]  # handle, label

DPI = 160  # of the PNG file
CELL = (3.0, 2.1)  # inches of a panel with its labels
NARROW, MANY = 2.5, 4  # its width where a row has so many
PANELS_A_ROW = 3  # in a figure whose runs have one schedule
LABEL_WIDTH, HEAD_WIDTH = 24, 38  # characters of an axis label and of a panel's title
LINE = 0.19  # inches of a line of the legend
CHARACTER, TITLE_CHARACTER = 0.062, 0.075  # inches of a character of the legend and of the title
CAPTION_WIDTH = 100  # characters of a line in the text file
SMOOTHED = ("train/reward", "train/late_accuracy")  # the first is the only one of the paper
WINDOW = 3  # steps of its running average
RUN = ["arm", "column", "seed", "run"]

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


def values(found: Mapping[str, Any]) -> pandas.DataFrame:
    """Statistics by name, as the table of a figure."""
    return pandas.DataFrame({"quantity": [*found], "value": [*found.values()]}, dtype=object)


def page(width: float, height: float, title: str, legend: Legend) -> Figure:
    """A figure with a title and a legend at the right of width x height inches for panels."""
    legend_columns = -(-len(legend) // max(1, int(height / LINE)))
    entry = 0.75 + CHARACTER * max((len(label) for _, label in legend), default=0)
    figure = Figure(figsize=(width + legend_columns * entry, height), layout="constrained")
    title = textwrap.fill(title, int(width / TITLE_CHARACTER), break_on_hyphens=False)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    if legend:
        handles, labels = zip(*legend, strict=True)
        figure.legend(
            handles, labels, loc="outside right upper", ncols=legend_columns, frameon=False,
            handlelength=3,
        )  # fmt: skip
    return figure


def tidy(data: FigureRuns, window: int) -> pandas.DataFrame:
    """One row per finite point of a panel: RUN, metric, step, value as measured, and `drawn`, the
    value as in the figure: for SMOOTHED the average over it and the window − 1 values before."""
    metrics = dict.fromkeys(panel.metric for panel in data.panels)
    steps = data.steps.reindex(columns=[*RUN, "step", *metrics])
    points = steps.melt([*RUN, "step"], [*metrics], "metric", "value")
    points = points[np.isfinite(points["value"].astype(float))]
    curves = points.groupby([*RUN, "metric"], sort=False)["value"]
    averages = curves.transform(lambda values: values.rolling(window, min_periods=1).mean())
    return points.assign(drawn=averages.where(points["metric"].isin(SMOOTHED), points["value"]))


@styled
def draw(data: FigureRuns, window: int) -> Drawing:
    """A figure of curves with a row per metric and a column per schedule, as in the paper.

    The legend lists the methods in the order in which their curves end in the last panel of the
    first row. window: steps in the running averages, of SMOOTHED.
    """
    points = tidy(data, window)
    recorded = [panel for panel in data.panels if panel.metric in set(points["metric"])]
    shown = recorded or data.panels  # an archive lacks metrics
    rows, across = len(shown), len(data.columns)
    by_column = across > 1
    if not by_column:
        rows, across = -(-rows // PANELS_A_ROW), min(rows, PANELS_A_ROW)
    means = {
        (panel.metric, column): _means(points, panel.metric, column)
        for panel in shown
        for column in data.columns
    }
    looks, last = style.looks(data.arms), means[shown[0].metric, data.columns[-1]]
    ends = {arm: float(mean["mean"].iloc[-1]) for arm, mean in last.items() if len(mean)}
    order = sorted(looks, key=lambda arm: -ends.get(arm, -np.inf))
    width = across * (CELL[0] if across < MANY else NARROW)
    legend = [(_handle(looks[arm]), arm) for arm in order]
    figure = page(width, CELL[1] * rows + 0.4, data.title, legend)
    grid = figure.subplots(
        rows, across, squeeze=False, sharex=by_column, sharey="row" if by_column else False
    )
    cells = [(panel, column) for panel in shown for column in data.columns]
    drawn = list(zip(grid.flat, cells, strict=False))
    for axes, (panel, column) in drawn:
        _draw_curves(axes, means[panel.metric, column], looks, panel.log)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        axes.set(xlabel="gradient steps", ylabel=textwrap.fill(panel.label, LABEL_WIDTH))
        if by_column:
            axes.label_outer()
    for axes, (panel, column) in drawn:
        _draw_bands(axes, means[panel.metric, column], looks, panel.log)
    for axes, column in zip(grid[0] if by_column else (), data.columns, strict=False):
        axes.set_title(column if len(column) <= HEAD_WIDTH else column.replace(", ", "\n"))
    for axes in grid.flat[len(cells) :]:
        axes.set_axis_off()
    missing = [panel.label for panel in data.panels if panel not in shown]
    caption = " ".join([data.caption, *_reading(data, window, missing)])
    return Drawing(data.name, data.title, figure, points, summary(data), caption)


def _means(points: pandas.DataFrame, metric: str, column: str) -> dict[str, pandas.DataFrame]:
    """The mean and the interval at each step of a panel, as of `band`, by arm."""
    here = points[(points["metric"] == metric) & (points["column"] == column)]
    return {
        str(arm): band(of_arm.pivot(index="step", columns="run", values="drawn"))
        for arm, of_arm in here.groupby("arm", sort=False)
    }


def _handle(look: style.Look) -> Line2D:
    return Line2D([], [], color=look.color, linestyle=look.dash, marker=look.marker)


def _draw_curves(
    axes: Axes, means: dict[str, pandas.DataFrame], looks: dict[str, style.Look], log: bool
) -> None:
    for place, (arm, look) in enumerate(looks.items()):
        if arm in means:
            mean = means[arm]["mean"]
            spaced = (0.12 * place / len(looks), 0.12) if len(mean) > 1 else 1
            axes.plot(
                mean.index, mean, color=look.color, linestyle=look.dash, marker=look.marker,
                zorder=look.zorder, markevery=spaced,
            )  # fmt: skip
            if log and (mean > 0).any():
                axes.set_yscale("log", nonpositive="clip")
                axes.minorticks_off()


def _draw_bands(
    axes: Axes, means: dict[str, pandas.DataFrame], looks: dict[str, style.Look], log: bool
) -> None:
    """Draw intervals, which do not widen the range of the axes that the curves have set."""
    axes.set_ylim(axes.get_ylim())
    for arm, mean in means.items():
        low, high, color = mean["low"], mean["high"], looks[arm].color
        shown = low > 0 if log else low.notna()
        axes.fill_between(mean.index, low, high, where=shown, color=color, alpha=0.15, lw=0)


def _reading(data: FigureRuns, window: int, missing: list[str]) -> list[str]:
    """Sentences on how to read the picture. missing: labels of panels without a value."""
    notes = [f"{head}: {of.meaning}." for head, of in columns(data).items()]
    notes += [f"paired: difference of the area from that of {data.arms[0]}, paired by seed."]
    notes += [releases_text(data.steps["release"])]
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
        "png": as_file(drawing.figure, "png", DPI),
        "pdf": as_file(drawing.figure, "pdf", DPI, metadata={"CreationDate": None}),
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
def as_file(figure: Figure, kind: str, dpi: int, **options: Any) -> bytes:
    """The picture as a file of a kind, the same bytes each time. options: of `savefig`."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=dpi, **options)
    if kind == "png":  # a palette of 256 colours makes it a third as large
        palette = Image.open(buffer).convert("RGB").quantize(256)
        palette.save(buffer := io.BytesIO(), format="png", optimize=True)
    return buffer.getvalue()
