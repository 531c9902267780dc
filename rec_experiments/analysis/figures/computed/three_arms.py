"""The 3-arm bandit of Section 3: one gradient step of the surrogate (Figure 1), and the pitfall of
REINFORCE on off-policy data. A policy is a point of a triangle."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from rec_experiments.algo.clips import OneSide
from rec_experiments.analysis.figures import bandit, style
from rec_experiments.analysis.figures.bandit import BEHAVIOR, REWARDS, Array
from rec_experiments.analysis.figures.render import Drawing, page, styled, values

ARMS = [f"arm {j + 1}, reward {reward:g}" for j, reward in enumerate(REWARDS)]
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])  # of the simplex of policies

# Figure 1
START = np.array([0.5, 0.3, 0.2])  # π of θₜ
TAUS = (0.25, 1.0, 4.0)
STEP_RATE = 4.0  # large enough to see one gradient step

# Section 3
STEPS, RATE, TAU = 2000, 1.0, 0.1
NARROW, WIDE = OneSide(low=0.2, high=0.2), OneSide(low=0.6, high=2.0)
METHODS: dict[str, Callable[[Array], Array]] = {
    "REINFORCE": lambda theta: bandit.reinforce(BEHAVIOR, REWARDS),
    "REC-OneSide-NoIS (0.2)": lambda theta: bandit.clipped(theta, BEHAVIOR, REWARDS, NARROW),
    "REC-OneSide-NoIS (0.6, 2.0)": lambda theta: bandit.clipped(theta, BEHAVIOR, REWARDS, WIDE),
    "OPMD (0.1)": lambda theta: bandit.opmd(theta, BEHAVIOR, REWARDS, TAU),
    "AsymRE (-0.1)": lambda theta: bandit.reinforce(BEHAVIOR, REWARDS, -TAU),
}
ON_POLICY = "REINFORCE, on-policy"


def simplex(axes: Axes, title: str) -> None:
    """Draw the triangle whose corners are the deterministic policies."""
    axes.plot(*CORNERS[[0, 1, 2, 0]].T, color="0.4", lw=0.8)
    for corner, (name, offset) in enumerate(zip(ARMS, ((0, -11), (0, -11), (0, 8)), strict=True)):
        axes.annotate(
            name, CORNERS[corner], xytext=offset, textcoords="offset points", ha="center",
            va="center", fontsize=8, annotation_clip=False,
        )  # fmt: skip
    axes.set_title(title, pad=16)
    axes.set(aspect="equal", xlim=(-0.06, 1.06), ylim=(-0.1, 0.9))
    axes.set_axis_off()


def flat(policy: Array) -> Array:
    """Points x, y of the triangle, 2 x ..., from policies ... x 3."""
    return np.moveaxis(policy @ CORNERS, -1, 0)


def arms_of(policy: Array) -> dict[str, float]:
    """The columns of a policy in a table."""
    return {f"arm {j + 1}": float(p) for j, p in enumerate(policy)}


# Figure 1 -----------------------------------------------------------------------------------------


@styled
def one_step() -> Drawing:
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
            step = STEP_RATE * bandit.surrogate_step(start, data, REWARDS, tau)
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
        "π of θₜ. Dashed: its argmin (Eq. 4) as τ falls from infinity to 0, from θₜ to the optimum "
        f"θ*. A gradient step (Eq. 7, learning rate {STEP_RATE:g}) may fall short of the argmin "
        "or go past it, and need not point towards it, especially with data from "
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


# Section 3 ----------------------------------------------------------------------------------------


@styled
def pitfall() -> Drawing:
    """Section 3: the paths of REINFORCE and of regularised methods on fixed data of π_b."""
    start = np.log(BEHAVIOR)
    methods = {
        **METHODS,
        ON_POLICY: lambda theta: bandit.reinforce(bandit.policy(theta), REWARDS),
    }
    looks = style.looks(list(methods))
    paths = {
        name: bandit.policy(bandit.trajectory(coefficient, start, RATE, STEPS))
        for name, coefficient in methods.items()
    }
    legend = [
        (Line2D([], [], color=look.color, ls=look.dash, marker=look.marker), name)
        for name, look in looks.items()
    ]
    figure = page(
        9.6, 3.1, "Section 3: the pitfall of REINFORCE on off-policy data (3-arm bandit)", legend
    )
    triangle, second, third = figure.subplots(1, 3)
    simplex(triangle, "")
    for name, path in paths.items():
        look = looks[name]
        triangle.plot(*flat(path), color=look.color, ls=look.dash)
        triangle.plot(*flat(path[-1]), look.marker, color=look.color, clip_on=False, ms=6)
        for axes, arm in ((second, 1), (third, 2)):
            axes.plot(
                np.arange(1, STEPS + 1), path[1:, arm], color=look.color, ls=look.dash,
                marker=look.marker, markevery=(0.02, 0.15),
            )  # fmt: skip
    triangle.plot(*flat(BEHAVIOR), "o", mfc="white", mec="black", zorder=5)
    triangle.annotate(r"$\pi_b$", flat(BEHAVIOR), xytext=(-17, 2), textcoords="offset points")
    for axes, arm in ((second, 1), (third, 2)):
        axes.set(xscale="log", xlabel="gradient steps", ylim=(-0.03, 1.03))
        axes.set_ylabel(f"probability of arm {arm + 1}")
    ends = {name: arms_of(path[-1]) for name, path in paths.items()}
    rows = [
        {"method": name, "step": step, **arms_of(path[step])}
        for name, path in paths.items()
        for step in sorted({*range(0, 101), *range(100, STEPS + 1, 20)})
    ]
    statistics = [
        {"method": name, **arms, "expected reward": float(paths[name][-1] @ REWARDS)}
        for name, arms in ends.items()
    ]
    caption = (
        "Rewards (0, 0.8, 1), exact expectations, learning rate "
        f"{RATE:g}. All start at π_b = (0.3, 0.6, 0.1) and, except on-policy, "
        "learn from data of π_b alone. The marks in the triangle are the final policies. "
        "REINFORCE converges to arm 2, which pays less than arm 3. Clipping and OPMD's "
        "penalty bound the update: the policy stops with arm 3 still likely. A shift of "
        "the baseline by 0.1 (AsymRE) is too small here."
    )
    title = f"Section 3: after {STEPS} steps"
    table = pandas.DataFrame(rows)
    return Drawing("bandit", title, figure, table, pandas.DataFrame(statistics), caption)
