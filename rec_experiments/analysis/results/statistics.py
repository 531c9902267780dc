"""Statistics of one run: pure functions of (rows of metrics.jsonl, metric), without smoothing.

Each raises NoValue with a reason if the run has no such number.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rec_experiments.analysis.results.runs import Row, is_finite, points

Measure = Callable[[list[Row], str], float]

FINAL_POINTS = 3  # evaluations, or training batches; their mean is the final value of a run


class NoValue(Exception):
    """A run does not have the number; the message says why."""


@dataclass(frozen=True, slots=True)
class Statistic:
    """name: in tables. meaning: one line for a reader. of: computes it for one run."""

    name: str
    meaning: str
    of: Measure


def measured(rows: list[Row], metric: str) -> tuple[list[int], list[float]]:
    """Steps and values, at least one. Raises NoValue if the metric was never measured, or if any
    value is not finite: the others would be a selection."""
    steps, values = points(rows, metric)
    if not values:
        raise NoValue(f"{metric} was not measured")
    if len(values) < sum(metric in row for row in rows):
        odd = next(row for row in rows if metric in row and not is_finite(row[metric]))
        raise NoValue(f"{metric} is {odd[metric]} at step {odd['step']}")
    return steps, values


def if_any(measure: Measure, rows: list[Row], metric: str) -> float | None:
    """The number, or None if the run has none."""
    try:
        return measure(rows, metric)
    except NoValue:
        return None


def initial(rows: list[Row], metric: str) -> float:
    """The first point."""
    return measured(rows, metric)[1][0]


def last(rows: list[Row], metric: str) -> float:
    """The last point."""
    return measured(rows, metric)[1][-1]


def highest(rows: list[Row], metric: str) -> float:
    """The highest point."""
    return max(measured(rows, metric)[1])


def lowest(rows: list[Row], metric: str) -> float:
    """The lowest point."""
    return min(measured(rows, metric)[1])


def median(rows: list[Row], metric: str) -> float:
    """Over the points, each counted once, regardless of their distance in steps."""
    return float(np.median(measured(rows, metric)[1]))


def mean(rows: list[Row], metric: str) -> float:
    """Over the points, each counted once, regardless of their distance in steps."""
    return float(np.mean(measured(rows, metric)[1]))


def best(rows: list[Row], metric: str) -> float:
    """Highest mean of FINAL_POINTS consecutive points: as noisy as `final`, not one lucky point."""
    values = measured(rows, metric)[1]
    return float(_means(values).max())


def final(rows: list[Row], metric: str) -> float:
    """Mean of the last FINAL_POINTS points."""
    return float(_means(measured(rows, metric)[1])[-1])


def _means(values: list[float]) -> np.ndarray:
    """Means of FINAL_POINTS consecutive points, or of all points if there are fewer."""
    window = min(FINAL_POINTS, len(values))
    return np.convolve(values, np.full(window, 1 / window), "valid")


def area_under_curve(rows: list[Row], metric: str) -> float:
    """Area by trapezoids, divided by the curve's length in steps, so that it is a mean."""
    steps, values = measured(rows, metric)
    length = steps[-1] - steps[0]
    return float(np.trapezoid(values, steps)) / length if length else values[0]


def area_under_middle_third(rows: list[Row], metric: str) -> float:
    """The area under the points in the second third of the run's steps, ends included, as a mean.
    It begins and ends with such a point: the curve is not interpolated to the ends of the third."""
    last_step = rows[-1]["step"] if rows else 0
    middle = [row for row in rows if last_step <= 3 * row["step"] <= 2 * last_step]
    return area_under_curve(middle, metric)


def second_half(rows: list[Row], metric: str) -> float:
    """The area under the points in the second half of the run's steps, as a mean."""
    last_step = rows[-1]["step"] if rows else 0
    return area_under_curve([row for row in rows if 2 * row["step"] >= last_step], metric)


def difference(first: Measure, second: Measure) -> Measure:
    """The measure first − second."""
    return lambda rows, metric: first(rows, metric) - second(rows, metric)


def maximum_drawdown(rows: list[Row], metric: str) -> float:
    """How far a curve drops at most below its highest previous point."""
    values = np.array(measured(rows, metric)[1])
    return float((np.maximum.accumulate(values) - values).max())


def seconds(rows: list[Row]) -> float:
    """Seconds of all steps. Rollouts count as far as training waited for them; in a local sweep the
    first runs wait more, since later ones reuse their rollouts from the initial policy."""
    return sum(seconds_of_steps(rows))


def seconds_of_steps(rows: Sequence[Row]) -> Iterator[float]:
    """The seconds of each row, as `seconds` counts them."""
    counted: dict[tuple[str, ...], list[str]] = {}  # by the keys of a row, which few rows differ in
    for row in rows:
        keys = tuple(row)
        if keys not in counted:
            beside = {"time/rollout", "time/reward"} if "time/wait" in row else set()
            counted[keys] = [key for key in keys if key.startswith("time/") and key not in beside]
        yield sum(row[key] for key in counted[keys])


LAST_POINTS = f"mean of the last {FINAL_POINTS} points"
BEST_POINTS = f"highest mean of {FINAL_POINTS} consecutive points"
FINAL = Statistic("final", LAST_POINTS, final)
BEST = Statistic("best", BEST_POINTS, best)
AREA_UNDER_CURVE = Statistic(
    "area under the curve (mean)",
    "area under the curve divided by its length in steps",
    area_under_curve,
)
SECOND_HALF = Statistic(
    "second half",
    "area under the points in the second half of the steps divided by its length",
    second_half,
)
SECOND_HALF_MINUS_INITIAL = Statistic(
    "second half − initial",
    "area under the points in the second half of the steps divided by its length, minus the first "
    "point",
    difference(second_half, initial),
)
FINAL_MINUS_INITIAL = Statistic(
    "final − initial", f"{LAST_POINTS}, minus the first", difference(final, initial)
)
FINAL_MINUS_BEST = Statistic(
    "final − best", f"{LAST_POINTS}, minus the {BEST_POINTS}", difference(final, best)
)
FINAL_MINUS_MIDDLE_THIRD = Statistic(
    "final − area under the middle third",
    f"{LAST_POINTS}, minus the area under the points in the middle third of the steps divided by "
    "its length",
    difference(final, area_under_middle_third),
)
MAXIMUM_DRAWDOWN = Statistic(
    "maximum drawdown",
    "how far the curve drops at most below its highest previous point",
    maximum_drawdown,
)
