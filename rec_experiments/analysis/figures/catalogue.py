"""Which figures there are: those computed and those drawn from runs, and how these are drawn."""

from typing import TYPE_CHECKING

from rec_experiments import sweeps
from rec_experiments.analysis.figures.computed import COMPUTED
from rec_experiments.analysis.results.figure_data import FigureData
from rec_experiments.sweeps import PICTURES

if TYPE_CHECKING:
    from rec_experiments.analysis.figures.render import Drawing

BENCHMARK = "staleness"  # how the names of its sweeps begin


def names() -> list[str]:
    """Every figure, those of the paper in its order, then the others."""
    numbered = [name for name in COMPUTED if name.startswith("fig")] + sweeps.names()
    others = [name for name in COMPUTED if name not in numbered]
    return sorted(numbered, key=lambda name: (len(name), name)) + others


def usual() -> list[str]:
    """Those that are made where none is named: a benchmark of thousands of jobs, which take minutes
    to compose, is not among them."""
    return [name for name in names() if not name.startswith(BENCHMARK)]


def draw(data: FigureData, window: int) -> "Drawing":
    """The figure of a sweep. window: steps in the running average of the training reward."""
    # Matplotlib takes half a second to import, and names need none.
    from rec_experiments.analysis.figures import render, staleness

    pictures = {
        "curves": lambda: render.draw(data, window),
        "staleness": lambda: staleness.draw(data),
    }
    assert pictures.keys() == set(PICTURES)
    return pictures[data.picture]()
