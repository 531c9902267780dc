"""From the numbers of several runs to a mean and its interval."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rec_experiments.results.runs import Run
from rec_experiments.results.statistics import Measure

Array = NDArray[np.float64]

RESAMPLES, CONFIDENCE, BOOTSTRAP_SEED = 2000, 0.95, 0


def of_finished(runs: Iterable[Run], measure: Measure, metric: str) -> list[tuple[int, float]]:
    """Seed and number of each finished run that has the number."""
    found = [(run.seed, measure(run.rows, metric)) for run in runs if run.done]
    return [(seed, value) for seed, value in found if value is not None]


def bootstrap(values_SI: Array) -> tuple[Array, Array] | None:
    """Percentile interval of the mean over seeds at each of I steps; None for a single seed.

    The same resamples serve every point, and every call, so a figure is the same each time. With
    three seeds the interval is their range: 1 of 27 resamples takes one seed three times.
    """
    seeds = len(values_SI)
    if seeds < 2:
        return None
    chosen = np.random.default_rng(BOOTSTRAP_SEED).integers(seeds, size=(RESAMPLES, seeds))
    counts_RS = (chosen[:, :, None] == np.arange(seeds)).sum(1)
    means_RI = counts_RS @ values_SI / seeds
    tail = (1 - CONFIDENCE) / 2
    low_I, high_I = np.quantile(means_RI, [tail, 1 - tail], axis=0)
    return low_I, high_I


def interval_of_mean(values: Sequence[float]) -> tuple[float, float] | None:
    """The bootstrap interval of one number a seed; None for fewer than two seeds."""
    ends = bootstrap(np.array(values)[:, None])
    return (float(ends[0][0]), float(ends[1][0])) if ends else None


@dataclass(frozen=True, slots=True)
class Band:
    """Mean over seeds, I values, and its bootstrap interval; None for a single seed."""

    steps: list[int]
    mean: Array
    interval: tuple[Array, Array] | None


def band(curves: list[tuple[list[int], list[float]]]) -> Band:
    """Mean over curves at the steps that all of them have, so that it never changes its seeds."""
    by_step = [dict(zip(*each, strict=True)) for each in curves]
    common = set.intersection(*(set(each) for each in by_step)) if by_step else set()
    if not common:
        return Band([], np.array([]), None)
    steps = sorted(common)
    values_SI = np.array([[each[step] for step in steps] for each in by_step], dtype=float)
    return Band(steps, values_SI.mean(0), bootstrap(values_SI))
