"""What the interval over seeds says about an endpoint, given δ, the smallest effect that matters.

[l, u] is the 95 % t interval of the mean over seeds; for the direction `lower` it is mirrored.

| | supported | contradicted | no difference above δ |
| higher, lower | l > 0 and u > δ | u < 0 and l < −δ | −δ < l and u < δ |
| alike | −δ < l and u < δ | u ≤ −δ or δ ≤ l | |
| not lower | −δ < l | u ≤ −δ | |

Everything else is undecided.

Values that are equal for all seeds have no spread for a t interval. But n equal values bound the
median: all lie on the same side of it with a probability of at most 2^(1−n), for any distribution.
So six equal values count as an interval of width zero, and fewer leave the endpoint undecided.
"""

import bisect
from collections.abc import Sequence
from enum import Enum

import numpy as np
from scipy.special import gammaincinv

from rec_experiments.analysis.results.statistics import (
    CONFIDENCE,
    Interval,
    interval_of_mean,
    t_factor,
)

MOST_SEEDS = 1000  # the largest number of seeds considered
EQUAL_SEEDS = 6  # equal values that decide: 2^(1−6) < 5 %
ROUNDING = 1e-9  # smaller spreads and distances count as zero


class Outcome(Enum):
    supported = "supported"
    contradicted = "contradicted"
    no_difference = "no difference above δ"
    premise_not_met = "premise not met"
    undecided = "undecided"
    not_run = "not run"


class Direction(Enum):
    higher = "higher"
    lower = "lower"
    alike = "alike"
    not_lower = "not lower"


def interval(values: Sequence[float]) -> Interval | None:
    """The interval that decides: the t interval, the value itself if enough seeds agree on it, or
    None for a single seed and for too few equal values."""
    if len(values) > 1 and np.std(values) <= ROUNDING:
        mean = float(np.mean(values))
        return (mean, mean) if len(values) >= EQUAL_SEEDS else None
    return interval_of_mean(values)


def decide(ends: Interval, delta: float, direction: Direction) -> Outcome:
    """The outcome of one endpoint, by the table above. delta: δ; 0 asks for the sign alone."""
    low, high = (-ends[1], -ends[0]) if direction is Direction.lower else ends
    within = -delta < low and high < delta
    if direction is Direction.alike:
        supported, contradicted = within, high <= -delta or delta <= low
    elif direction is Direction.not_lower:
        supported, contradicted = -delta < low, high <= -delta
    else:
        supported = low > ROUNDING and high > delta
        contradicted = high < -ROUNDING and low < -delta
    if supported or contradicted:
        return Outcome.supported if supported else Outcome.contradicted
    return Outcome.no_difference if within else Outcome.undecided


def seeds_to_decide(
    values: Sequence[float], delta: float, direction: Direction
) -> tuple[int, int] | None:
    """How many seeds would decide an undecided endpoint if its mean stayed the same.

    The range comes from the 95 % interval of the variance. None if either end is above MOST_SEEDS,
    or if there are fewer than three seeds or no spread.
    """
    seeds = len(values)
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1)) if seeds > 2 else 0.0
    if spread <= ROUNDING:
        return None
    shares = np.array([1 + CONFIDENCE, 1 - CONFIDENCE]) / 2
    chi_square = 2 * gammaincinv((seeds - 1) / 2, shares)
    spreads = spread * np.sqrt((seeds - 1) / chi_square)
    fewest, most = (_first_to_decide(mean, float(each), delta, direction) for each in spreads)
    return (max(fewest, seeds + 1), max(most, seeds + 1)) if fewest and most else None


def _first_to_decide(mean: float, spread: float, delta: float, direction: Direction) -> int | None:
    """The smallest number of seeds that decides; a decision stays one with more seeds."""

    def decided(seeds: int) -> bool:
        half = spread * t_factor(seeds, CONFIDENCE)
        return decide((mean - half, mean + half), delta, direction) is not Outcome.undecided

    candidates = range(2, MOST_SEEDS + 1)
    at = bisect.bisect_left(candidates, True, key=decided)
    return candidates[at] if at < len(candidates) else None
