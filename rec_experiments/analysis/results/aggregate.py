"""Aggregates over seeds: the mean and its interval.

The interval is Student's two-sided t interval of the mean over seeds. It assumes that the mean is
about normal. Ten seeds are enough for that unless a few behave differently from the rest, and then
the interval is wide. Seeds with equal values have an interval of width zero, which only says that
no variation was observed; claims/decision.py decides what follows from that.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit  # scipy.stats takes a second to import

from rec_experiments.analysis.results.runs import Row, Run
from rec_experiments.analysis.results.statistics import NoValue

Array = NDArray[np.float64]
Value = TypeVar("Value")

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class SeedValues(Generic[Value]):
    """values: one of each finished run. without: why a run has no value. Both by seed."""

    values: dict[int, Value]
    without: dict[int, str]

    @property
    def finished(self) -> set[int]:
        return {*self.values, *self.without}


def finished_values(
    runs: Iterable[Run], measure: Callable[[list[Row], str], Value], metric: str
) -> SeedValues[Value]:
    """The value of each finished run; of runs with the same seed the first counts."""
    found: SeedValues[Value] = SeedValues({}, {})
    for run in runs:
        if run.done and run.seed not in found.finished:
            try:
                found.values[run.seed] = measure(run.rows, metric)
            except NoValue as reason:
                found.without[run.seed] = str(reason)
    return found


@functools.cache
def t_factor(seeds: int, confidence: float) -> float:
    """Half the width of the t interval of a mean, in standard deviations; infinite for one seed."""
    if seeds < 2:
        return math.inf
    return float(stdtrit(seeds - 1, (1 + confidence) / 2)) / math.sqrt(seeds)


def t_interval(values_SI: Array) -> tuple[Array, Array] | None:
    """Interval of the mean over S seeds at each of I steps; None for a single seed."""
    seeds = len(values_SI)
    if seeds < 2:
        return None
    half_I = t_factor(seeds, CONFIDENCE) * values_SI.std(0, ddof=1)
    return values_SI.mean(0) - half_I, values_SI.mean(0) + half_I


def interval_of_mean(values: Sequence[float]) -> tuple[float, float] | None:
    """Interval of the mean of one value per seed; None for fewer than two seeds."""
    ends = t_interval(np.array(values)[:, None])
    return (float(ends[0][0]), float(ends[1][0])) if ends else None


@dataclass(frozen=True, slots=True)
class Band:
    """Mean over seeds at I steps, and its t interval; None for a single seed."""

    steps: list[int]
    mean: Array
    interval: tuple[Array, Array] | None


def band(curves: list[tuple[list[int], list[float]]]) -> Band:
    """Mean over curves (steps, values), at the steps that all of them have."""
    by_step = [dict(zip(*each, strict=True)) for each in curves]
    common = set.intersection(*(set(each) for each in by_step)) if by_step else set()
    if not common:
        return Band([], np.array([]), None)
    steps = sorted(common)
    values_SI = np.array([[each[step] for step in steps] for each in by_step], dtype=float)
    return Band(steps, values_SI.mean(0), t_interval(values_SI))
