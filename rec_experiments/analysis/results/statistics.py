"""Statistics of one run: pure functions of (rows of metrics.jsonl, metric), without smoothing.

Each raises NoValue with a reason if the run has no such number.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

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


def area_under_first_third(rows: list[Row], metric: str) -> float:
    return area_under_curve(_third(rows, 0), metric)


def area_under_middle_third(rows: list[Row], metric: str) -> float:
    return area_under_curve(_third(rows, 1), metric)


def second_half(rows: list[Row], metric: str) -> float:
    """The area under the second half of the run's steps, as a mean."""
    last_step = rows[-1]["step"] if rows else 0
    return area_under_curve([row for row in rows if 2 * row["step"] >= last_step], metric)


def at_first_quarter(rows: list[Row], metric: str) -> float:
    """The value at a quarter of the run's steps, interpolated linearly."""
    steps, values = measured(rows, metric)
    return float(np.interp(rows[-1]["step"] / 4, steps, values))


def _third(rows: list[Row], number: int) -> list[Row]:
    """The rows in the first (0), second or last (2) third of the run's steps, ends included."""
    last_step = rows[-1]["step"] if rows else 0
    return [
        row for row in rows if number * last_step <= 3 * row["step"] <= (number + 1) * last_step
    ]


def difference(first: Measure, second: Measure) -> Measure:
    """The measure first − second."""
    return lambda rows, metric: first(rows, metric) - second(rows, metric)


def ratio(first: Measure, second: Measure) -> Measure:
    """The measure first ÷ second. Raises NoValue for a ratio to 0."""

    def measure(rows: list[Row], metric: str) -> float:
        above, below = first(rows, metric), second(rows, metric)
        if not below:
            raise NoValue("a ratio to 0")
        return above / below

    return measure


def maximum_drawdown(rows: list[Row], metric: str) -> float:
    """How far a curve drops at most below its highest previous point."""
    return _drawdown(rows, metric)[0]


def recovery(rows: list[Row], metric: str) -> float:
    """How far `final` lies above the point of the largest drawdown."""
    return final(rows, metric) - _drawdown(rows, metric)[1]


def _drawdown(rows: list[Row], metric: str) -> tuple[float, float]:
    """The largest drawdown and the value of the curve there."""
    values = np.array(measured(rows, metric)[1])
    depths = np.maximum.accumulate(values) - values
    at = int(depths.argmax())
    return float(depths[at]), float(values[at])


def standard_deviation(rows: list[Row], metric: str) -> float:
    """Of the points around their mean."""
    return float(np.std(measured(rows, metric)[1]))


def drop_at_synchronisation(rows: list[Row], metric: str) -> float:
    """The relative drop of a curve at a synchronisation, mean over synchronisations.

    The value at a synchronisation is compared with the lower of the means of the periods before and
    after it, so neither a slope nor the height of a tooth matters: 1 if each tooth starts at 0,
    about 0 or less for noise and slopes. A synchronisation next to a period of zeros counts as 0.
    """
    stale = dict(zip(*points(rows, "train/staleness"), strict=True))
    values = zip(*measured(rows, metric), strict=True)
    pairs = [(stale[step], value) for step, value in values if step in stale]
    starts = [at for at in range(1, len(pairs)) if pairs[at][0] < pairs[at - 1][0]]
    if not starts:
        raise NoValue("the run has no synchronisation")
    periods = np.split(np.array([value for _, value in pairs]), starts)
    drops = []
    for before, after in pairwise(periods):
        level = min(before.mean(), after.mean())
        drops.append(float(1 - after[0] / level) if level else 0.0)
    return float(np.mean(drops))


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
AREA_UNDER_FIRST_THIRD = Statistic(
    "area under the first third",
    "area under the first third of the steps divided by its length in steps",
    area_under_first_third,
)
HIGHEST_MINUS_INITIAL = Statistic(
    "highest − initial", "highest point minus the first", difference(highest, initial)
)
FINAL_MINUS_INITIAL = Statistic(
    "final − initial", f"{LAST_POINTS}, minus the first", difference(final, initial)
)
FINAL_MINUS_MIDDLE_THIRD = Statistic(
    "final − area under the middle third",
    f"{LAST_POINTS}, minus the area under the middle third of the steps divided by its length",
    difference(final, area_under_middle_third),
)
FINAL_MINUS_FIRST_QUARTER = Statistic(
    "final − end of the first quarter",
    f"{LAST_POINTS}, minus the curve at a quarter of the steps, the end of the first of four equal "
    "stages",
    difference(final, at_first_quarter),
)
FINAL_OVER_BEST = Statistic(
    "final ÷ best", f"{LAST_POINTS}, divided by the {BEST_POINTS}", ratio(final, best)
)
MAXIMUM_DRAWDOWN = Statistic(
    "maximum drawdown",
    "how far the curve drops at most below its highest previous point",
    maximum_drawdown,
)
RECOVERY = Statistic(
    "final − trough", f"{LAST_POINTS}, minus the point of the largest drawdown", recovery
)
STANDARD_DEVIATION = Statistic(
    "standard deviation along the curve",
    "standard deviation of the points around their mean",
    standard_deviation,
)
DROP_AT_SYNCHRONISATION = Statistic(
    "drop at synchronisation",
    "relative drop of the curve at a synchronisation, mean over synchronisations",
    drop_at_synchronisation,
)
