"""From the rows of one run to one number. Pure functions of (rows of metrics.jsonl, metric).

Each returns None where the run does not say: the metric was not measured, or a ratio has no
denominator. Curves are taken as measured, not smoothed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rec_experiments.figures.curves import FINAL_POINTS, Row, points, summarise_run

Measure = Callable[[list[Row], str], float | None]


@dataclass(frozen=True, slots=True)
class Statistic:
    """of: the number of one run. name: as tables write it. meaning: one line for a reader."""

    name: str
    meaning: str
    of: Measure


def initial(rows: list[Row], metric: str) -> float | None:
    return next(iter(points(rows, metric)[1]), None)


def final(rows: list[Row], metric: str) -> float | None:
    return _summary(rows, metric, "final")


def best(rows: list[Row], metric: str) -> float | None:
    return _summary(rows, metric, "best")


def height(rows: list[Row], metric: str) -> float | None:
    return _summary(rows, metric, "area")


def early_height(rows: list[Row], metric: str) -> float | None:
    return height(_third(rows, 0), metric)


def _summary(rows: list[Row], metric: str, key: str) -> float | None:
    found = summarise_run(rows, metric)
    return found[key] if found else None


def _third(rows: list[Row], number: int) -> list[Row]:
    """The rows in the first (0), second or last (2) third of the run's steps, ends included."""
    last = rows[-1]["step"] if rows else 0
    return [row for row in rows if number * last <= 3 * row["step"] <= (number + 1) * last]


def _difference(first: Measure, second: Measure) -> Measure:
    def measure(rows: list[Row], metric: str) -> float | None:
        a, b = first(rows, metric), second(rows, metric)
        return None if a is None or b is None else a - b

    return measure


def _ratio(first: Measure, second: Measure) -> Measure:
    def measure(rows: list[Row], metric: str) -> float | None:
        a, b = first(rows, metric), second(rows, metric)
        return None if a is None or not b else a / b

    return measure


def _middle(rows: list[Row], metric: str) -> float | None:
    return height(_third(rows, 1), metric)


def deepest_fall(rows: list[Row], metric: str) -> float | None:
    """The most that a curve lies below the highest point before."""
    values = np.array(points(rows, metric)[1])
    return float((np.maximum.accumulate(values) - values).max()) if len(values) else None


def spread(rows: list[Row], metric: str) -> float | None:
    values = points(rows, metric)[1]
    return float(np.std(values)) if values else None


def sawtooth(rows: list[Row], metric: str) -> float | None:
    """How far a curve falls back at a synchronisation, as a share; mean over synchronisations.

    The value there is held against the lower of the mean heights of the periods before and after,
    so that neither a slope nor the height of a tooth matters: 1 if each tooth starts at 0, about 0
    or less for noise and slopes. A synchronisation beside a period of zeros counts 0.
    """
    stale = dict(zip(*points(rows, "train/staleness"), strict=True))
    pairs = [(stale[step], value) for step, value in zip(*points(rows, metric), strict=True)]
    starts = [at for at in range(1, len(pairs)) if pairs[at][0] < pairs[at - 1][0]]
    if not starts:
        return None
    periods = np.split(np.array([value for _, value in pairs]), starts)
    falls = []
    for before, after in pairwise(periods):
        level = min(before.mean(), after.mean())
        falls.append(float(1 - after[0] / level) if level else 0.0)
    return float(np.mean(falls))


LAST = f"mean of the last {FINAL_POINTS} points"
FINAL = Statistic("final", LAST, final)
BEST = Statistic("best", "highest point", best)
HEIGHT = Statistic("height", "mean height: area under the curve divided by its length", height)
EARLY = Statistic("early height", "the same over the first third of the steps", early_height)
RISE = Statistic("rise", "highest point minus the first", _difference(best, initial))
GAIN = Statistic("gain", f"{LAST}, minus the first", _difference(final, initial))
KEPT = Statistic("kept", f"{LAST}, divided by the highest point", _ratio(final, best))
LEFT = Statistic("left", f"{LAST}, divided by the first point", _ratio(final, initial))
FALL = Statistic(
    "fall", "the most that the curve lies below its highest point so far", deepest_fall
)
LATE = Statistic(
    "late growth",
    f"{LAST}, minus the mean height over the middle third",
    _difference(final, _middle),
)
SPREAD = Statistic("spread", "standard deviation along the curve", spread)
SAWTOOTH = Statistic(
    "fall back", "share by which the curve falls back at a synchronisation", sawtooth
)
