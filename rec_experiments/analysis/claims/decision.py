"""When the values of several seeds decide whether their mean lies in a range.

A part of a claim is

supported      if the whole 95 % t interval of the mean lies in the range;
contradicted   if the whole interval, at the level 1 − 5 % / (number of parts), lies outside;
undecided      if neither; the number of seeds that would decide, with the same mean and spread, is
               then reported;
not run        if there is no finished run.

Why two levels: a claim is supported only if every part is, so false support must pass every part,
and 95 % for each part is at least 95 % for the claim. But one contradicted part contradicts the
claim, and of ten true parts one has its interval outside by chance in up to a fifth of all cases.
Dividing the 5 % by the number of parts (Bonferroni) limits that to 5 %. Claims are separate
questions, so there is no correction over claims.

Values that are equal for all seeds have no spread for a t interval. But n equal values bound the
median: all lie on the same side of it with a probability of at most 2^(1−n), for any distribution.
So they decide at 95 % from six seeds on, and fewer leave the part undecided.
"""

import bisect
import math
from dataclasses import dataclass, replace
from enum import Enum

from rec_experiments.analysis.results.aggregate import CONFIDENCE, t_factor

MOST_SEEDS = 1000  # the largest number of seeds considered
ROUNDING = 1e-9  # smaller spreads and distances count as zero


class Outcome(Enum):
    supported = "supported"
    contradicted = "contradicted"
    undecided = "undecided"
    not_run = "not run"


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """An open interval in which a number must lie, and the reason for it."""

    name: str
    reason: str
    low: float = -math.inf
    high: float = math.inf

    def logarithm(self) -> "Range":
        """The range of the number's logarithm."""
        low, high = (math.log(end) if end > 0 else -math.inf for end in (self.low, self.high))
        return replace(self, low=low, high=high)

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"> {self.low:.3g}"
        if math.isinf(self.low):
            return f"< {self.high:.3g}"
        return f"{self.low:.3g} to {self.high:.3g}"


def decide(seeds: int, mean: float, spread: float, range_: Range, parts: int) -> Outcome:
    """The outcome of one of `parts` parts, from the mean and standard deviation over seeds."""
    low, high = range_.low + ROUNDING, range_.high - ROUNDING
    half = _half_width(seeds, spread, CONFIDENCE)
    if low < mean - half and mean + half < high:
        return Outcome.supported
    half = _half_width(seeds, spread, 1 - (1 - CONFIDENCE) / parts)
    if mean + half <= low or high <= mean - half:
        return Outcome.contradicted
    return Outcome.undecided


def _half_width(seeds: int, spread: float, confidence: float) -> float:
    """Half the width of the interval. For equal values: 0, or infinite if there are too few."""
    if spread > ROUNDING:
        return spread * t_factor(seeds, confidence)
    return 0.0 if 0.5 ** (seeds - 1) <= 1 - confidence else math.inf


def seeds_to_decide(mean: float, spread: float, range_: Range, parts: int) -> int | None:
    """The smallest number of seeds that would decide, by bisection; None above MOST_SEEDS."""

    def decided(seeds: int) -> bool:
        return decide(seeds, mean, spread, range_, parts) is not Outcome.undecided

    candidates = range(2, MOST_SEEDS + 1)
    at = bisect.bisect_left(candidates, True, key=decided)
    return candidates[at] if at < len(candidates) else None
