"""Numbers of one run, from its rows; None if they were not measured."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from rec_experiments.analysis.results.runs import Row, is_finite, points

Array = NDArray[np.float64]
Lags = tuple[int, int | None]  # first and last, both included; None for no last
PARTS = ("start", "middle", "end")
SHARE = 10  # a part is a tenth of the points of a run
LEAST_LAGS = 5  # for a slope over lags
MOST_LAGS = 6  # that a table shows
PERCENT = ("clip_fraction", "live_groups", "distinct_responses", "truncated")  # shown in per cent


def lag(row: Row) -> int | None:
    """Gradient steps since the batch was generated; None if its responses have several lags."""
    mean = row.get("train/staleness")
    if not is_finite(mean):
        return None
    if row.get("train/staleness_min", mean) != row.get("train/staleness_max", mean):
        return None
    return int(mean)


def lags_of(rows: list[Row]) -> list[int | None]:
    """The lag of each row."""
    return [lag(row) for row in rows]


@dataclass(frozen=True, slots=True)
class Series:
    """The I finite values of a metric of a run, and the lag of the row of each, NaN for none."""

    values_I: Array
    lags_I: Array

    def mean(self, lags: Lags | None = None, part: str | None = None) -> float | None:
        """Mean over the steps at these lags, and in this part of them."""
        values_I = self.values_I
        if lags:
            first, last = lags
            end = math.inf if last is None else last
            values_I = values_I[(first <= self.lags_I) & (self.lags_I <= end)]
        return float(np.mean(_part(values_I, part))) if len(values_I) else None


def series(rows: list[Row], quantity: str, lags: list[int | None]) -> Series:
    """The values of train/`quantity`. lags: of each row."""
    key = f"train/{quantity}"
    at = [n for n, row in enumerate(rows) if is_finite(row.get(key))]
    return Series(
        np.array([rows[n][key] for n in at], dtype=float),
        np.array([lags[n] for n in at], dtype=float),  # None becomes NaN
    )


def _part(values: Array, part: str | None) -> Array:
    """The first, middle or last tenth of the points, at least one; all points for None."""
    if part is None:
        return values
    size = max(1, round(len(values) / SHARE))
    start = {"start": 0, "middle": (len(values) - size) // 2, "end": len(values) - size}[part]
    return values[start : start + size]


def interval(rows: list[Row]) -> float | None:
    """Gradient steps per version of the sampler's policy, median over versions."""
    versions = Counter(points(rows, "train/policy_version")[1])
    return float(median(versions.values())) if versions else None


def windows(rows: list[Row]) -> float | None:
    """Gradient steps ÷ interval: how often the sampler's policy was updated."""
    steps = len(points(rows, "train/policy_version")[1])
    return steps / each if (each := interval(rows)) else None


def exponents(rows: list[Row], quantity: str) -> list[float]:
    """For each version of the sampler's policy, the exponent with which train/`quantity` grows with
    the lag of its batches: the least-squares slope of its logarithm over that of the lag. Lag 0 and
    values of 0 have no logarithm and are left out, and so are versions with few other lags."""
    found = []
    for version in dict.fromkeys(points(rows, "train/policy_version")[1]):
        its = [row for row in rows if row.get("train/policy_version") == version]
        values = series(its, quantity, lags_of(its))
        positive = (values.values_I > 0) & (values.lags_I > 0)
        lags_J, values_J = values.lags_I[positive], values.values_I[positive]
        if len(set(lags_J)) >= LEAST_LAGS:
            found.append(float(np.polyfit(np.log(lags_J), np.log(values_J), 1)[0]))
    return found


def accuracy_at_two_thirds(rows: list[Row]) -> float | None:
    """Evaluation accuracy at two thirds of the steps ÷ that at the end, both on the least-squares
    line through the evaluations of the last third. Above 1 accuracy falls; near 1 it is flat."""
    last = rows[-1]["step"] if rows else 0
    steps, values = points([row for row in rows if 3 * row["step"] >= 2 * last], "eval/accuracy")
    if len(steps) < 3:
        return None
    slope, height = np.polyfit(steps, values, 1)
    end = slope * last + height
    return float((slope * last * 2 / 3 + height) / end) if end > 0 else None


DERIVED: dict[str, Callable[[list[Row]], float | None]] = {
    "interval": interval,
    "windows": windows,
    "accuracy_at_two_thirds": accuracy_at_two_thirds,
}


def factor(quantity: str) -> int:
    """By which a quantity is multiplied to be shown: 100 for per cent."""
    return 100 if quantity.startswith(PERCENT) else 1


def spread(lags: set[int]) -> list[int]:
    """At most MOST_LAGS of the lags: all, or the first two and then evenly spaced ones, rounded
    down, to the last."""
    ordered = sorted(lags)
    if len(ordered) <= MOST_LAGS:
        return ordered
    last = ordered[-1]
    even = [math.floor(last * n / (MOST_LAGS - 2)) for n in range(1, MOST_LAGS - 1)]
    nearest = [max(each for each in ordered if each <= max(point, ordered[0])) for point in even]
    return sorted({*ordered[:2], *nearest})


def between(lags: list[int]) -> list[tuple[int, int]]:
    """Adjacent ranges that end at these lags."""
    starts = [lags[0], *(each + 1 for each in lags[:-1])] if lags else []
    return list(zip(starts, lags, strict=True))
