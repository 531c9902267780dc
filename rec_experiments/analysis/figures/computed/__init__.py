"""Figures without runs, computed with the functions that training uses."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rec_experiments.analysis.figures.render import Drawing


def _draw(module: str) -> "Drawing":
    drawing: Drawing = import_module(f"{__name__}.{module}").draw()  # matplotlib is slow to import
    return drawing


COMPUTED: dict[str, Callable[[], "Drawing"]] = {
    "fig1": partial(_draw, "fig1"),
    "fig2": partial(_draw, "fig2"),
    "fig8": partial(_draw, "fig8"),
    "bandit": partial(_draw, "section3"),
    "paper2_fig1": partial(_draw, "paper2_fig1"),
    "theorem1": partial(_draw, "theorem1"),
}
