"""Figure 1: one gradient step of the surrogate on the 3-arm bandit."""

from typing import Any

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from rec_experiments.analysis.figures import bandit, style
from rec_experiments.analysis.figures.bandit import BEHAVIOR, REWARDS, Array
from rec_experiments.analysis.figures.computed.shared import (
    CORNERS,
    arms_of,
    flat,
    simplex,
    values,
)
from rec_experiments.analysis.figures.render import Drawing, page, styled

START = np.array([0.5, 0.3, 0.2])  # π of θₜ
TAUS = (0.25, 1.0, 4.0)
RATE = 4.0  # large enough to see one gradient step


@styled
def draw() -> Drawing:
    """One gradient step of the surrogate, its argmin and the optimum, on the 3-arm bandit."""
    start = np.log(START)
    sources = {
        "drawn by π of θₜ": (START, style.BLUE),
        "drawn by π_b = (0.3, 0.6, 0.1)": (BEHAVIOR, style.VERMILION),
    }
    purple = style.DARK_PURPLE
    legend = [
        (_dot("black", "o"), "θₜ"),
        *[(_dot(color, "o", "-"), f"θₜ₊₁, data {name}") for name, (_, color) in sources.items()],
        (_dot(purple, "D", "--"), "θ̃ₜ₊₁, argmin of the surrogate loss"),
        (_dot("black", "*"), "θ*, always arm 3"),
    ]
    rows: list[dict[str, Any]] = []
    figure = page(9.4, 2.75, "Figure 1: one REINFORCE step on the surrogate (3-arm bandit)", legend)
    for axes, tau in zip(figure.subplots(1, len(TAUS)), TAUS, strict=True):
        argmin = bandit.surrogate_argmin(start, REWARDS, tau)
        simplex(axes, f"τ = {tau:g}")
        _level_lines(axes, start, tau)
        ray = start + np.linspace(0, 40, 2000)[:, None] * REWARDS
        axes.plot(*flat(bandit.policy(ray)), "--", color=purple, lw=1)
        stations = {"start": start, "argmin": argmin}
        for name, (data, color) in sources.items():
            step = RATE * bandit.surrogate_step(start, data, REWARDS, tau)
            stations[f"step, data {name}"] = start + step
            axes.annotate(
                "",
                flat(bandit.policy(start + step)),
                flat(START),
                arrowprops={"arrowstyle": "->", "color": color, "lw": 1.6, "shrinkA": 0},
            )
            axes.plot(*flat(bandit.policy(start + step)), "o", color=color, ms=4)
        axes.plot(*flat(START), "o", color="black")
        axes.plot(*flat(bandit.policy(argmin)), "D", color=purple)
        axes.plot(*CORNERS[2], "*", color="black", ms=10, clip_on=False)
        rows += [
            {
                "tau": tau,
                "point": name,
                **arms_of(bandit.policy(theta)),
                "surrogate_loss": bandit.surrogate_loss(theta, start, START, REWARDS, tau),
                "objective": bandit.objective(theta, start, REWARDS, tau),
            }
            for name, theta in stations.items()
        ]
    # For any τ, the argmin lies on one ray from θₜ and the gradient step on another.
    cosines = {
        f"cosine of step and way to the argmin, data {name}": bandit.cosine(
            bandit.surrogate_step(start, data, REWARDS, 1.0), REWARDS
        )
        for name, (data, _) in sources.items()
    }
    caption = (
        "A point is a policy over three arms; the nearer a corner, the "
        "likelier its arm. Grey: level lines of the surrogate loss (Eq. 6) for data drawn by "
        "π of θₜ. Dashed: its argmin (Eq. 4) as τ falls from infinity to 0, from θₜ "
        f"to the optimum θ*. A gradient step (Eq. 7, learning rate {RATE:g}) may fall short of "
        "the argmin or go past it, and need not point towards it, especially with data from "
        "another policy."
    )
    return Drawing("fig1", "Figure 1", figure, pandas.DataFrame(rows), values(cosines), caption)


def _level_lines(axes: Axes, start: Array, tau: float) -> None:
    grid = np.linspace(0.004, 0.992, 160)
    first, second = np.meshgrid(grid, grid)
    third = 1 - first - second
    inside = third > 0.003
    points = np.stack([first, second, third], -1)[inside]
    loss = bandit.surrogate_loss(np.log(points), start, START, REWARDS, tau)
    levels = np.quantile(loss, np.linspace(0.04, 0.9, 9))
    axes.tricontour(*flat(points), loss, levels=levels, colors="0.78", linewidths=0.6)


def _dot(color: str, marker: str, line: str = "") -> Line2D:
    return Line2D([], [], color=color, marker=marker, linestyle=line)
