"""Statistics of one run: functions of a curve, without smoothing.

A curve is a column of the table of one run: the values of a metric by step, NaN where it was not
measured. Each function raises NoValue with a reason if the run has no such number.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pandas

Curve: TypeAlias = pandas.Series  # index: step
Measure = Callable[[Curve], float]

FINAL_POINTS = 3  # evaluations, or training batches; their mean is the final value of a run


class NoValue(Exception):
    """A run does not have the number; the message says why."""


@dataclass(frozen=True, slots=True)
class Statistic:
    """name: in tables. meaning: one line for a reader. of: computes it for one run."""

    name: str
    meaning: str
    of: Measure


def measured(curve: Curve) -> Curve:
    """The points of a curve, at least one. Raises NoValue if the metric was never measured, or if
    any value is not finite: the others would be a selection."""
    points = curve.dropna()
    if points.empty:
        raise NoValue(f"{curve.name} was not measured")
    if not np.isfinite(points).all():
        raise NoValue(f"{curve.name} is not finite at step {points[~np.isfinite(points)].index[0]}")
    return points


def value(measure: Measure, curve: Curve) -> float | None:
    """The number, or None if the run has none."""
    try:
        return measure(curve)
    except NoValue:
        return None


def initial(curve: Curve) -> float:
    """The first point."""
    return float(measured(curve).iloc[0])


def last(curve: Curve) -> float:
    """The last point."""
    return float(measured(curve).iloc[-1])


def highest(curve: Curve) -> float:
    """The highest point."""
    return float(measured(curve).max())


def lowest(curve: Curve) -> float:
    """The lowest point."""
    return float(measured(curve).min())


def median(curve: Curve) -> float:
    """Over the points, each counted once, regardless of their distance in steps."""
    return float(np.median(measured(curve)))


def mean(curve: Curve) -> float:
    """Over the points, each counted once, regardless of their distance in steps."""
    return float(np.mean(measured(curve).to_numpy()))


def best(curve: Curve) -> float:
    """Highest mean of FINAL_POINTS consecutive points: as noisy as `final`, not one lucky point."""
    return float(_running_means(curve).max())


def final(curve: Curve) -> float:
    """Mean of the last FINAL_POINTS points."""
    return float(_running_means(curve)[-1])


def _running_means(curve: Curve) -> np.ndarray:
    """Means of FINAL_POINTS consecutive points, or of all points if there are fewer."""
    points = measured(curve).to_numpy()
    window = min(FINAL_POINTS, len(points))
    return np.convolve(points, np.full(window, 1 / window), "valid")


def area(curve: Curve) -> float:
    """Area by trapezoids, divided by the curve's length in steps, so that it is a mean."""
    points = measured(curve)
    length = points.index[-1] - points.index[0]
    if not length:
        return float(points.iloc[0])
    return float(np.trapezoid(points.to_numpy(), points.index)) / float(length)


def middle_third(curve: Curve) -> float:
    """The area under the points in the second third of the run's steps, ends included, as a mean.
    It begins and ends with such a point: the curve is not interpolated to the ends of the third."""
    step, end = curve.index, _last_step(curve)
    return area(curve[(end <= 3 * step) & (3 * step <= 2 * end)])


def second_half(curve: Curve) -> float:
    """The area under the points in the second half of the run's steps, as a mean."""
    return area(curve[2 * curve.index >= _last_step(curve)])


def _last_step(curve: Curve) -> int:
    return int(curve.index[-1]) if len(curve) else 0


def maximum_drawdown(curve: Curve) -> float:
    """How far a curve drops at most below its highest previous point."""
    points = measured(curve).to_numpy()
    return float((np.maximum.accumulate(points) - points).max())


def difference(first: Measure, second: Measure) -> Measure:
    """The measure first − second."""
    return lambda curve: first(curve) - second(curve)


def seconds(rows: pandas.DataFrame) -> pandas.Series:
    """The seconds of each recorded step. Rollouts count as far as training waited for them; in a
    local sweep the first runs wait more, since later ones reuse their rollouts."""
    times = rows.filter(like="time/")
    beside = [key for key in ("time/rollout", "time/reward") if key in times]
    if beside and "time/wait" in times:
        times.loc[times["time/wait"].notna(), beside] = np.nan
    return times.sum(axis=1)


LAST_POINTS = f"mean of the last {FINAL_POINTS} points"
BEST_POINTS = f"highest mean of {FINAL_POINTS} consecutive points"
HALF = "area under the points in the second half of the steps divided by its length"
STATISTICS = {
    "lowest": Statistic("Min", "lowest evaluation of a run, step 0 included", lowest),
    "highest": Statistic("Max", "highest evaluation of a run", highest),
    "median": Statistic("Median", "median evaluation of a run", median),
    "mean": Statistic("Mean", "mean evaluation of a run", mean),
    "final": Statistic("final", LAST_POINTS, final),
    "best": Statistic("best", BEST_POINTS, best),
    "area": Statistic(
        "area under the curve (mean)",
        "area under the curve divided by its length in steps",
        area,
    ),
    "second_half": Statistic("second half", HALF, second_half),
    "second_half_minus_initial": Statistic(
        "second half − initial", f"{HALF}, minus the first point", difference(second_half, initial)
    ),
    "final_minus_initial": Statistic(
        "final − initial", f"{LAST_POINTS}, minus the first", difference(final, initial)
    ),
    "final_minus_best": Statistic(
        "final − best", f"{LAST_POINTS}, minus the {BEST_POINTS}", difference(final, best)
    ),
    "final_minus_middle_third": Statistic(
        "final − area under the middle third",
        f"{LAST_POINTS}, minus the area under the points in the middle third of the steps divided "
        "by its length",
        difference(final, middle_third),
    ),
    "maximum_drawdown": Statistic(
        "maximum drawdown",
        "how far the curve drops at most below its highest previous point",
        maximum_drawdown,
    ),
}
