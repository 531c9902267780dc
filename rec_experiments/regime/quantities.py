"""From the rows of one run to one number. Each returns None where the run does not say."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from statistics import median

import numpy as np

from rec_experiments.results.runs import Row, is_finite, points

Lags = tuple[int, int | None]  # from, to, both included; None for no end
PARTS = ("start", "middle", "end")
SHARE = 10  # a part of a run is one in so many of its points
PERCENT = ("clip_fraction", "live_groups", "distinct_responses")  # shown in per cent


def lag(row: Row) -> int | None:
    """Gradient steps since the batch was drawn; None where its responses are of several lags."""
    mean = row.get("train/staleness")
    if not is_finite(mean):
        return None
    if row.get("train/staleness_min", mean) != row.get("train/staleness_max", mean):
        return None
    return int(mean)


def lags_of(rows: list[Row]) -> set[int]:
    """Those that occur."""
    return {each for row in rows if (each := lag(row)) is not None}


def at(lags: Lags, rows: list[Row], found: Iterable[int | None]) -> list[Row]:
    """The rows at these lags. found: the lag of each row."""
    first, last = lags
    end = math.inf if last is None else last
    return [
        row
        for row, each in zip(rows, found, strict=True)
        if each is not None and first <= each <= end
    ]


def mean_of(
    rows: list[Row], quantity: str, lags: Lags | None = None, part: str | None = None
) -> float | None:
    """Mean of train/`quantity` over the steps at these lags, and in this part of them."""
    if lags:
        rows = at(lags, rows, map(lag, rows))
    values = points(rows, f"train/{quantity}")[1]
    return float(np.mean(_part(values, part))) if values else None


def _part(values: list[float], part: str | None) -> list[float]:
    """The first, middle or last tenth of the points, at least one; all for None."""
    if part is None:
        return values
    size = max(1, round(len(values) / SHARE))
    start = {"start": 0, "middle": (len(values) - size) // 2, "end": len(values) - size}[part]
    return values[start : start + size]


def interval(rows: list[Row]) -> float | None:
    """Gradient steps that one drawing version serves, median over versions."""
    versions = Counter(points(rows, "train/policy_version")[1])
    return float(median(versions.values())) if versions else None


def windows(rows: list[Row]) -> float | None:
    """Gradient steps ÷ interval: how often the drawing policy was renewed."""
    steps = len(points(rows, "train/policy_version")[1])
    return steps / each if (each := interval(rows)) else None


def accuracy_at_two_thirds(rows: list[Row]) -> float | None:
    """Evaluation accuracy at two thirds of the steps ÷ that at the end, both on the line of least
    squares through the evaluations of the last third. Above 1 it falls; near 1 it is flat."""
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


def measure(
    rows: list[Row], quantity: str, lags: Lags | None = None, part: str | None = None
) -> float | None:
    """A derived quantity, or the mean of a metric."""
    if quantity in DERIVED:
        return DERIVED[quantity](rows)
    return mean_of(rows, quantity, lags, part)


def factor(quantity: str) -> int:
    """Between a quantity and what is shown of it."""
    return 100 if quantity.startswith(PERCENT) else 1


def spread(lags: set[int], most: int = 6) -> list[int]:
    """At most `most` of them from first to last: all, or the first two and then at even distances
    rounded down."""
    ordered = sorted(lags)
    if len(ordered) <= most:
        return ordered
    last = ordered[-1]
    even = [math.floor(last * n / (most - 2)) for n in range(1, most - 1)]
    nearest = [max(each for each in ordered if each <= max(point, ordered[0])) for point in even]
    return sorted({*ordered[:2], *nearest})


def between(lags: list[int]) -> list[tuple[int, int]]:
    """Ranges without gaps that end at these lags."""
    starts = [lags[0], *(each + 1 for each in lags[:-1])] if lags else []
    return list(zip(starts, lags, strict=True))
