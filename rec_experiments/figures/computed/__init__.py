"""Figures that need no run: each is computed from the functions that training itself uses."""

from collections.abc import Callable

from rec_experiments.figures.computed import fig1, fig2, fig8, paper2_fig1, section3, theorem1
from rec_experiments.figures.render import Drawing

COMPUTED: dict[str, Callable[[], Drawing]] = {
    "fig1": fig1.draw,
    "fig2": fig2.draw,
    "fig8": fig8.draw,
    "bandit": section3.draw,
    "paper2_fig1": paper2_fig1.draw,
    "theorem1": theorem1.draw,
}
