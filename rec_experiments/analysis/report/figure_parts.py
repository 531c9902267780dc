"""The figures of the page: each as a picture, with its numbers as text. Nothing here knows HTML."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rec_experiments.analysis import regime
from rec_experiments.analysis.figures import catalogue
from rec_experiments.analysis.figures.computed import COMPUTED
from rec_experiments.analysis.figures.curves import WINDOW
from rec_experiments.analysis.report.beside import forked
from rec_experiments.analysis.results.figure_data import FigureData
from rec_experiments.analysis.results.summary import remarks
from rec_experiments.config.identity import flat, identity

if TYPE_CHECKING:
    from rec_experiments.analysis.figures.render import Drawing

DPI = 130  # sharp on a phone, small in the page

Config = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Differences:
    """Keys whose values differ between the arms of a figure. table: key, then one value an arm."""

    arms: list[str]
    table: list[list[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class FigurePart:
    """A figure. arms, columns: of its runs, none where it is computed. notes: what to know of runs
    that are not whole. summary: its statistics as text. regime: that of its runs as text; empty
    where it has none."""

    name: str
    title: str
    arms: list[str]
    columns: list[str]
    png: bytes
    notes: list[str]
    summary: str
    regime: str
    differences: Differences | None


def figures(
    names: list[str], data: dict[str, FigureData], configs: dict[Path, Config]
) -> list[FigurePart]:
    """Those that are computed, and those that have data."""
    swept = [name for name in names if name in data]
    import_module(
        "rec_experiments.analysis.figures.render"
    )  # once, not in each process that is forked
    with forked(lambda name: _of_runs(data[name], configs), swept) as of_runs:
        parts = {name: _computed(COMPUTED[name]()) for name in names if name in COMPUTED}
        parts |= {part.name: part for part in of_runs}
    return [parts[name] for name in names if name in parts]


def _computed(drawing: "Drawing") -> FigurePart:
    return FigurePart(
        name=drawing.name,
        title=drawing.summary.partition("\n")[0],
        arms=[],
        columns=[],
        png=_png(drawing),
        notes=[],
        summary=drawing.summary,
        regime="",
        differences=None,
    )


def _of_runs(data: FigureData, configs: dict[Path, Config]) -> FigurePart:
    shown = data.as_shown()
    drawing = catalogue.draw(shown, WINDOW)
    return FigurePart(
        name=data.name,
        title=data.title,
        arms=data.arms,
        columns=data.columns,
        png=_png(drawing),
        notes=remarks(shown),
        summary=drawing.summary,
        regime=regime.tables.text(regime.of_figure(shown)),
        differences=differences(shown, configs),
    )


def differences(data: FigureData, configs: dict[Path, Config]) -> Differences:
    """What tells the arms of a figure apart: compared run by run at one column and seed.

    So an arm whose runs are not all there does not differ by its seeds.
    """
    cells: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for run in data.runs:
        if run.path in configs:
            kept = identity(configs[run.path])
            cells.setdefault((run.column, run.seed), {})[run.arm] = flat(kept)
    keys: dict[str, None] = {}
    for cell in cells.values():
        for key in dict.fromkeys(key for values in cell.values() for key in values):
            if len({repr(values.get(key)) for values in cell.values()}) > 1:
                keys[key] = None
    arms = [arm for arm in data.arms if any(arm in cell for cell in cells.values())]

    def value(key: str, arm: str) -> str:
        seen = [_text(cell[arm].get(key)) for cell in cells.values() if arm in cell]
        return ", ".join(dict.fromkeys(seen))

    return Differences(arms=arms, table=[[key, *(value(key, arm) for arm in arms)] for key in keys])


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _png(drawing: "Drawing") -> bytes:
    from rec_experiments.analysis.figures import render  # matplotlib takes half a second to import

    return render.png(drawing.figure, DPI, quick=True)
