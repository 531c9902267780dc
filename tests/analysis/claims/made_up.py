"""Figures with made-up curves, to judge claims on."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas

from rec_experiments.analysis.results.figure import FigureRuns

Curve = Callable[[int], Sequence[float]]  # of a seed: its evaluations
COLUMN, SEEDS, STEPS = "the column", 10, 100


def noisy(*heights: float, spread: float = 0.005, salt: int = 0) -> Curve:
    """Through these heights, shifted after the start by normal noise of each seed."""

    def curve(seed: int) -> list[float]:
        shift = spread * float(np.random.default_rng([salt, seed]).normal())
        return [heights[0], *(height + shift for height in heights[1:])]

    return curve


def curve_of(values: Sequence[float], metric: str = "eval/accuracy") -> pandas.Series:
    """The values at evenly spaced steps."""
    steps = np.linspace(0, STEPS, len(values)).round().astype(int)
    return pandas.Series(values, steps, float, metric)


def figure(
    arms: Mapping[str, Curve], seeds: Sequence[int] = range(SEEDS), state: str = "done"
) -> FigureRuns:
    steps = pandas.concat(
        curve_of(curve(seed)).rename_axis("step").reset_index().assign(
            arm=arm, column=COLUMN, seed=seed, run=f"{arm}/{seed}", state=state
        )
        for arm, curve in arms.items()
        for seed in seeds
    )  # fmt: skip
    runs = steps.drop_duplicates("run").assign(release=12)
    return FigureRuns(name="fig", runs=runs, steps=steps)
