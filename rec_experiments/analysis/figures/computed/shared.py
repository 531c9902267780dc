"""Shared by computed figures: the triangle of policies over three arms, and tables."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas
from matplotlib.axes import Axes

from rec_experiments.analysis.figures.bandit import REWARDS, Array

ARMS = [f"arm {j + 1}, reward {reward:g}" for j, reward in enumerate(REWARDS)]
CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, np.sqrt(0.75)]])  # of the simplex of policies


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


def values(found: Mapping[str, Any]) -> pandas.DataFrame:
    """Statistics by name, as a table."""
    return pandas.DataFrame({"quantity": [*found], "value": [*found.values()]}, dtype=object)
