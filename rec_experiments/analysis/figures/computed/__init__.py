"""Figures that need no run: each is computed from the functions that training itself uses."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rec_experiments.analysis.figures.render import Drawing


def _drawn_by(module: str) -> "Callable[[], Drawing]":
    """A module's `draw`. It is imported when it draws: matplotlib takes half a second."""

    def draw() -> "Drawing":
        drawing: Drawing = import_module(f"{__name__}.{module}").draw()
        return drawing

    return draw


COMPUTED = {
    "fig1": _drawn_by("fig1"),
    "fig2": _drawn_by("fig2"),
    "fig8": _drawn_by("fig8"),
    "bandit": _drawn_by("section3"),
    "paper2_fig1": _drawn_by("paper2_fig1"),
    "theorem1": _drawn_by("theorem1"),
}
