"""Any figure by its name: its runs, and its drawing."""

from collections.abc import Sequence
from pkgutil import resolve_name

import pandas

from rec_experiments import sweeps
from rec_experiments.analysis.figures import COMPUTED, computed, maps, render
from rec_experiments.analysis.figures.render import Drawing
from rec_experiments.analysis.results.figure import FigureRuns, figure_runs, multirun


def runs_of(name: str, found: pandas.DataFrame, overrides: Sequence[str]) -> FigureRuns | None:
    """The runs of a figure or a multirun; None for a figure that is computed without any. found: of
    `table.find`. Raises NoRuns, and UserError for a wrong override."""
    if name in COMPUTED:
        return None
    known = name in sweeps.names()
    return figure_runs(name, found, overrides) if known else multirun(name, found)


def draw(name: str, data: FigureRuns | None, window: int = render.WINDOW) -> Drawing:
    """A figure. data: of `runs_of`. window: steps in the running averages, of `render.SMOOTHED`."""
    if data is None:
        drawing: Drawing = resolve_name(f"{computed.__name__}.{COMPUTED[name]}")()
        return drawing
    others = {"map": maps.draw, "stability": maps.draw_stability}
    return others[data.picture](data) if data.picture in others else render.draw(data, window)
