"""Section 3: the pitfall of REINFORCE on off-policy data, on the 3-arm bandit."""

from collections.abc import Callable

import numpy as np
import pandas
from matplotlib.lines import Line2D

from rec_experiments.algo.clips import OneSide
from rec_experiments.analysis.figures import bandit, style
from rec_experiments.analysis.figures.bandit import BEHAVIOR, REWARDS, Array
from rec_experiments.analysis.figures.computed.shared import arms_of, flat, simplex
from rec_experiments.analysis.figures.render import Drawing, page, styled

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


@styled
def draw() -> Drawing:
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
