"""Statistics of one run, and their mean and interval over runs that differ only in their seed.

A curve is a column of the table of one run: the values of a metric by step, NaN where it was not
measured. A statistic is a function of a curve's measured points, without smoothing.

The interval is Student's two-sided t interval of the mean over seeds. It assumes that the mean is
about normal. Ten seeds are enough for that unless a few behave differently from the rest, and then
the interval is wide. Seeds with equal values have an interval of width zero, which only says that
no variation was observed; claims/decision.py decides what follows from that.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas
from scipy.special import stdtrit  # scipy.stats takes a second to import

ACCURACY = "eval/accuracy"
FINAL_POINTS = 3  # evaluations, or training batches; their mean is the final value of a run
CONFIDENCE = 0.95
Curve: TypeAlias = pandas.Series  # index: step
Interval = tuple[float, float]


class NoValue(Exception):
    """A run does not have the number; the message says why."""


# Of one run ---------------------------------------------------------------------------------------


def curve(rows: pandas.DataFrame, metric: str) -> Curve:
    """The curve of one run, from its rows of the table."""
    return rows.set_index("step").reindex(columns=[metric])[metric]


def measured(curve: Curve) -> Curve:
    """The points of a curve, at least one. Raises NoValue if the metric was never measured, or if
    any value is not finite: the others would be a selection."""
    points = curve.dropna()
    if points.empty:
        raise NoValue(f"{curve.name} was not measured")
    if not np.isfinite(points).all():
        raise NoValue(f"{curve.name} is not finite at step {points[~np.isfinite(points)].index[0]}")
    return points


class Statistic(NamedTuple):
    """name: in tables. meaning: one line for a reader. of_points: computes it from the points."""

    name: str
    meaning: str
    of_points: Callable[[Curve], float]

    def __call__(self, curve: Curve) -> float:
        """The number of one run. Raises NoValue if it has none."""
        return float(self.of_points(measured(curve)))


def _running_means(points: Curve) -> np.ndarray:
    """Means of FINAL_POINTS consecutive points, or of all points if there are fewer."""
    window = min(FINAL_POINTS, len(points))
    return np.convolve(points.to_numpy(), np.full(window, 1 / window), "valid")


def _area(points: Curve) -> float:
    """Area by trapezoids, divided by the length in steps, so that it is a mean."""
    length = float(points.index[-1] - points.index[0])
    return np.trapezoid(points.to_numpy(), points.index) / length if length else points.iloc[0]


def _middle_third(points: Curve) -> float:
    """The area in the second third of the steps, ends included. It begins and ends with a point:
    the curve is not interpolated to the ends of the third."""
    thrice, end = 3 * points.index, points.index[-1]
    return _area(points[(end <= thrice) & (thrice <= 2 * end)])


HALF = "area under the points in the second half of the steps divided by its length"
LAST_POINTS = f"mean of the last {FINAL_POINTS} points"
BEST_POINTS = f"highest mean of {FINAL_POINTS} consecutive points"
# As noisy as `final`, not one lucky point.
best = Statistic("best", BEST_POINTS, lambda points: _running_means(points).max())
final = Statistic("final", LAST_POINTS, lambda points: _running_means(points)[-1])
initial = Statistic("initial", "first point", lambda points: points.iloc[0])
last = Statistic("last", "last point", lambda points: points.iloc[-1])
area = Statistic(
    "area under the curve (mean)", "area under the curve divided by its length in steps", _area
)
second_half = Statistic(
    "second half", HALF, lambda points: _area(points[2 * points.index >= points.index[-1]])
)
mean = Statistic("Mean", "mean evaluation of a run", lambda points: points.to_numpy().mean())


def _difference(first: Statistic, second: Statistic, name: str, meaning: str) -> Statistic:
    return Statistic(
        f"{first.name} − {name}",
        f"{first.meaning}, minus the {meaning}",
        lambda points: first.of_points(points) - second.of_points(points),
    )


STATISTICS = {
    "lowest": Statistic(
        "Min", "lowest evaluation of a run, step 0 included", lambda points: points.min()
    ),
    "highest": Statistic("Max", "highest evaluation of a run", lambda points: points.max()),
    "median": Statistic("Median", "median evaluation of a run", lambda points: points.median()),
    "mean": mean,
    "final": final,
    "best": best,
    "area": area,
    "second_half": second_half,
    "second_half_minus_initial": _difference(second_half, initial, "initial", "first point"),
    "final_minus_initial": _difference(final, initial, "initial", "first"),
    "final_minus_best": _difference(final, best, "best", BEST_POINTS),
    "final_minus_middle_third": _difference(
        final,
        Statistic("", "", _middle_third),
        "area under the middle third",
        "area under the points in the middle third of the steps divided by its length",
    ),
    "maximum_drawdown": Statistic(
        "maximum drawdown",
        "how far the curve drops at most below its highest previous point",
        lambda points: (points.cummax() - points).max(),
    ),
}


def seconds(rows: pandas.DataFrame) -> pandas.Series:
    """The seconds of each recorded step. Rollouts count as far as training waited for them; in a
    local sweep the first runs wait more, since later ones reuse their rollouts."""
    times = rows.filter(like="time/")
    beside = [key for key in ("time/rollout", "time/reward") if key in times]
    if beside and "time/wait" in times:
        times.loc[times["time/wait"].notna(), beside] = np.nan
    return times.sum(axis=1)


# Over seeds ---------------------------------------------------------------------------------------


class SeedValues(NamedTuple):
    """values: one of each finished run. without: why a run has no value. Both by seed."""

    values: dict[int, float]
    without: dict[int, str]

    @property
    def finished(self) -> set[int]:
        return {*self.values, *self.without}


def by_seed(steps: pandas.DataFrame, statistic: Statistic, metric: str) -> SeedValues:
    """A statistic of the finished runs of one arm and column. steps: their rows of the table, which
    may hold others; of runs with the same seed the first counts."""
    found = SeedValues({}, {})
    done = steps[steps["state"] == "done"]
    for (seed, _), rows in done.groupby(["seed", "run"], sort=False):
        if seed not in found.finished:
            try:
                found.values[int(seed)] = statistic(curve(rows, metric))
            except NoValue as reason:
                found.without[int(seed)] = str(reason)
    return found


@functools.cache
def t_factor(seeds: int, confidence: float = CONFIDENCE) -> float:
    """Half the width of the t interval of a mean, in standard deviations; infinite for one seed."""
    if seeds < 2:
        return math.inf
    return float(stdtrit(seeds - 1, (1 + confidence) / 2)) / math.sqrt(seeds)


def interval_of_mean(values: Sequence[float]) -> Interval | None:
    """Interval of the mean of one value per seed; None for fewer than two seeds."""
    if len(values) < 2:
        return None
    middle, half = np.mean(values), t_factor(len(values)) * np.std(values, ddof=1)
    return float(middle - half), float(middle + half)


def band(curves: pandas.DataFrame) -> pandas.DataFrame:
    """`mean`, `low` and `high` end of its interval over the curves of several runs, one a column,
    at the steps that all of them have; the ends are NaN for a single run."""
    if curves.empty:
        return pandas.DataFrame(columns=["mean", "low", "high"], dtype=float)
    common = curves.dropna()
    values_SI = common.to_numpy().T
    mean_I, seeds = values_SI.mean(0), len(values_SI)
    half_I = t_factor(seeds) * values_SI.std(0, ddof=1) if seeds > 1 else np.nan
    ends = {"mean": mean_I, "low": mean_I - half_I, "high": mean_I + half_I}
    return pandas.DataFrame(ends, index=common.index)
