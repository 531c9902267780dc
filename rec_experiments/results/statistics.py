"""From the rows of one run to one number. Pure functions of (rows of metrics.jsonl, metric).

Each returns None where the run does not say: the metric was not measured, or a ratio has no
denominator. Curves are taken as measured, not smoothed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rec_experiments.results.runs import Row, points

Measure = Callable[[list[Row], str], float | None]

FINAL_POINTS = 3  # evaluations, or training batches, whose mean is a run's final value


@dataclass(frozen=True, slots=True)
class Statistic:
    """of: the number of one run. name: as tables write it. meaning: one line for a reader."""

    name: str
    meaning: str
    of: Measure


def initial(rows: list[Row], metric: str) -> float | None:
    """The first point."""
    return next(iter(points(rows, metric)[1]), None)


def last(rows: list[Row], metric: str) -> float | None:
    """The last point."""
    return next(reversed(points(rows, metric)[1]), None)


def best(rows: list[Row], metric: str) -> float | None:
    """The highest point."""
    return max(points(rows, metric)[1], default=None)


def final(rows: list[Row], metric: str) -> float | None:
    """Mean of the last FINAL_POINTS points."""
    values = points(rows, metric)[1]
    return float(np.mean(values[-FINAL_POINTS:])) if values else None


def area_under_curve(rows: list[Row], metric: str) -> float | None:
    """By trapezoids, divided by the curve's length in steps: a mean, whatever the steps' number."""
    steps, values = points(rows, metric)
    if not values:
        return None
    length = steps[-1] - steps[0]
    return float(np.trapezoid(values, steps)) / length if length else values[0]


def area_under_first_third(rows: list[Row], metric: str) -> float | None:
    return area_under_curve(_third(rows, 0), metric)


def area_under_middle_third(rows: list[Row], metric: str) -> float | None:
    return area_under_curve(_third(rows, 1), metric)


def _third(rows: list[Row], number: int) -> list[Row]:
    """The rows in the first (0), second or last (2) third of the run's steps, ends included."""
    last_step = rows[-1]["step"] if rows else 0
    return [
        row for row in rows if number * last_step <= 3 * row["step"] <= (number + 1) * last_step
    ]


def difference(first: Measure, second: Measure) -> Measure:
    """The measure first − second."""

    def measure(rows: list[Row], metric: str) -> float | None:
        a, b = first(rows, metric), second(rows, metric)
        return None if a is None or b is None else a - b

    return measure


def ratio(first: Measure, second: Measure) -> Measure:
    """The measure first ÷ second."""

    def measure(rows: list[Row], metric: str) -> float | None:
        a, b = first(rows, metric), second(rows, metric)
        return None if a is None or not b else a / b

    return measure


def maximum_drawdown(rows: list[Row], metric: str) -> float | None:
    """The most that a curve lies below the highest point before."""
    values = np.array(points(rows, metric)[1])
    return float((np.maximum.accumulate(values) - values).max()) if len(values) else None


def standard_deviation(rows: list[Row], metric: str) -> float | None:
    """Of the points about their mean."""
    values = points(rows, metric)[1]
    return float(np.std(values)) if values else None


def drop_at_synchronisation(rows: list[Row], metric: str) -> float | None:
    """How far a curve drops at a synchronisation, as a share; mean over synchronisations.

    The value there is held against the lower of the means of the periods before and after, so that
    neither a slope nor the height of a tooth matters: 1 if each tooth starts at 0, about 0 or less
    for noise and slopes. A synchronisation beside a period of zeros counts 0.
    """
    stale = dict(zip(*points(rows, "train/staleness"), strict=True))
    pairs = [(stale[step], value) for step, value in zip(*points(rows, metric), strict=True)]
    starts = [at for at in range(1, len(pairs)) if pairs[at][0] < pairs[at - 1][0]]
    if not starts:
        return None
    periods = np.split(np.array([value for _, value in pairs]), starts)
    drops = []
    for before, after in pairwise(periods):
        level = min(before.mean(), after.mean())
        drops.append(float(1 - after[0] / level) if level else 0.0)
    return float(np.mean(drops))


def seconds(rows: list[Row]) -> float:
    """Seconds that the steps took. Drawing counts as far as training waited for it."""
    return sum(map(_seconds_of_step, rows))


def _seconds_of_step(row: Row) -> float:
    beside = {"time/rollout", "time/reward"} if "time/wait" in row else set()
    return sum(v for k, v in row.items() if k.startswith("time/") and k not in beside)


LAST_POINTS = f"mean of the last {FINAL_POINTS} points"
FINAL = Statistic("final", LAST_POINTS, final)
BEST = Statistic("best", "highest point", best)
AREA_UNDER_CURVE = Statistic(
    "area under the curve (mean)",
    "area under the curve divided by its length in steps",
    area_under_curve,
)
AREA_UNDER_FIRST_THIRD = Statistic(
    "area under the first third",
    "area under the first third of the steps divided by its length in steps",
    area_under_first_third,
)
BEST_MINUS_INITIAL = Statistic(
    "best − initial", "highest point minus the first", difference(best, initial)
)
FINAL_MINUS_INITIAL = Statistic(
    "final − initial", f"{LAST_POINTS}, minus the first", difference(final, initial)
)
FINAL_MINUS_MIDDLE_THIRD = Statistic(
    "final − area under the middle third",
    f"{LAST_POINTS}, minus the area under the middle third of the steps divided by its length",
    difference(final, area_under_middle_third),
)
FINAL_OVER_BEST = Statistic(
    "final ÷ best", f"{LAST_POINTS}, divided by the highest point", ratio(final, best)
)
FINAL_OVER_INITIAL = Statistic(
    "final ÷ initial", f"{LAST_POINTS}, divided by the first point", ratio(final, initial)
)
MAXIMUM_DRAWDOWN = Statistic(
    "maximum drawdown",
    "the most that the curve lies below its highest point so far",
    maximum_drawdown,
)
STANDARD_DEVIATION = Statistic(
    "standard deviation along the curve",
    "standard deviation of the points about their mean",
    standard_deviation,
)
DROP_AT_SYNCHRONISATION = Statistic(
    "drop at synchronisation",
    "share by which the curve drops at a synchronisation, mean over synchronisations",
    drop_at_synchronisation,
)
