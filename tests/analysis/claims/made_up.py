"""Figures with made-up curves, to judge claims on."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from rec_experiments.analysis.results.figure_data import FigureData
from rec_experiments.analysis.results.runs import Run

Curve = Callable[[int], Sequence[float]]  # of a seed: its evaluations
COLUMN, SEEDS, STEPS = "the column", 10, 100


def noisy(*heights: float, spread: float = 0.005, salt: int = 0) -> Curve:
    """Through these heights, shifted after the start by normal noise of each seed."""

    def curve(seed: int) -> list[float]:
        shift = spread * float(np.random.default_rng([salt, seed]).normal())
        return [heights[0], *(height + shift for height in heights[1:])]

    return curve


def rows(values: Sequence[float], metric: str = "eval/accuracy") -> list[dict]:
    steps = np.linspace(0, STEPS, len(values)).round().astype(int).tolist()
    return [{"step": step, metric: value} for step, value in zip(steps, values, strict=True)]


def figure(
    arms: Mapping[str, Curve],
    name: str = "fig",
    seeds: Sequence[int] = range(SEEDS),
    metric: str = "eval/accuracy",
    state: str = "done",
) -> FigureData:
    runs = [
        Run(
            arm=arm,
            column=COLUMN,
            seed=seed,
            path=Path(f"{name}/{arm}/{seed}"),
            state=state,
            rows=rows(curve(seed), metric),
        )
        for arm, curve in arms.items()
        for seed in seeds
    ]
    return FigureData(
        name=name, title=name, caption="", scale="mini", claim_seeds=None, shown=list(seeds),
        arms=list(arms), columns=[COLUMN], panels=[], runs=runs,
    )  # fmt: skip
