"""Any figure by its name: its runs, and its drawing."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas

from rec_experiments import sweeps
from rec_experiments.analysis.figures.computed import COMPUTED
from rec_experiments.analysis.figures.curves import WINDOW
from rec_experiments.analysis.results.figure import FigureRuns, figure_runs, multirun

if TYPE_CHECKING:
    from rec_experiments.analysis.figures.render import Drawing


def runs_of(name: str, found: pandas.DataFrame, overrides: Sequence[str]) -> FigureRuns | None:
    """The runs of a figure or a multirun; None for a figure that is computed without any. found: of
    `table.find`. Raises NoRuns, and UserError for a wrong override."""
    if name in COMPUTED:
        return None
    known = name in sweeps.names()
    return figure_runs(name, found, overrides) if known else multirun(name, found)


def draw(name: str, data: FigureRuns | None, window: int = WINDOW) -> "Drawing":
    """A figure. data: of `runs_of`. window: steps in the running averages, of `curves.SMOOTHED`."""
    if data is None:
        return COMPUTED[name]()
    from rec_experiments.analysis.figures import maps, render  # matplotlib is slow

    others = {"map": maps.draw, "stability": maps.draw_stability}
    return others[data.picture](data) if data.picture in others else render.draw(data, window)
