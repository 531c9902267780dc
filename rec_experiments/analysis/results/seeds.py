"""Runs that differ only in their seed: one number of each, their mean and its interval.

The interval is Student's two-sided t interval of the mean over seeds. It assumes that the mean is
about normal. Ten seeds are enough for that unless a few behave differently from the rest, and then
the interval is wide. Seeds with equal values have an interval of width zero, which only says that
no variation was observed; claims/decision.py decides what follows from that.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas
from numpy.typing import NDArray
from scipy.special import stdtrit  # scipy.stats takes a second to import

from rec_experiments.analysis.results.measures import Measure, NoValue

Array = NDArray[np.float64]

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class SeedValues:
    """values: one of each finished run. without: why a run has no value. Both by seed."""

    values: dict[int, float]
    without: dict[int, str]

    @property
    def finished(self) -> set[int]:
        return {*self.values, *self.without}


def by_seed(steps: pandas.DataFrame, measure: Measure, metric: str) -> SeedValues:
    """A statistic of the finished runs of one arm and column. steps: their rows of the table, which
    may hold others; of runs with the same seed the first counts."""
    found = SeedValues({}, {})
    done = steps[steps["state"] == "done"]
    for (seed, _), rows in done.groupby(["seed", "run"], sort=False):
        if seed not in found.finished:
            try:
                found.values[int(seed)] = measure(curve(rows, metric))
            except NoValue as reason:
                found.without[int(seed)] = str(reason)
    return found


def curve(rows: pandas.DataFrame, metric: str) -> pandas.Series:
    """The curve of one run, from its rows of the table."""
    if metric not in rows:
        return pandas.Series(np.nan, index=rows["step"], name=metric)
    return rows.set_index("step")[metric]


@functools.cache
def t_factor(seeds: int, confidence: float = CONFIDENCE) -> float:
    """Half the width of the t interval of a mean, in standard deviations; infinite for one seed."""
    if seeds < 2:
        return math.inf
    return float(stdtrit(seeds - 1, (1 + confidence) / 2)) / math.sqrt(seeds)


def t_interval(values_SI: Array) -> tuple[Array, Array] | None:
    """Interval of the mean over S seeds at each of I steps; None for a single seed."""
    seeds = len(values_SI)
    if seeds < 2:
        return None
    half_I = t_factor(seeds) * values_SI.std(0, ddof=1)
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


def band(curves: Sequence[pandas.Series]) -> Band:
    """Mean over the curves of several runs, at the steps that all of them have."""
    common = pandas.concat(curves, axis=1, join="inner").dropna() if curves else pandas.DataFrame()
    if common.empty:
        return Band([], np.array([]), None)
    values_SI = common.sort_index().to_numpy().T
    return Band([*map(int, common.sort_index().index)], values_SI.mean(0), t_interval(values_SI))
