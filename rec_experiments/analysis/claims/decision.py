"""When the numbers of several seeds decide whether their mean lies in a range.

One part of a claim is

supported      if the whole 95 % t interval of the mean lies in the range that the claim asks for;
contradicted   if the whole interval lies outside, at the level 1 − 5 % / (number of parts);
undecided      if neither; then the number of seeds is named that would decide if mean and spread
               stayed as they are;
not run        if there is no finished run.

Why two levels. A claim is supported only if every part is, so what supports it falsely has to get
past each of them: 95 % a part is at least 95 % for the claim. But it is contradicted as soon as one
part is, and of ten true parts one has its interval outside by chance in up to a fifth of all cases.
With 5 % divided by the number of parts (Bonferroni), a true claim is contradicted in at most 5 %.
Claims are not corrected for each other: each is a question of its own.

Values that are equal in all seeds have no spread for t to go by. What n equal values bound is the
median: it lies to one side of them all with a chance of 2^(1−n) at most, whatever the distribution.
So they decide at 95 % from six seeds on; fewer leave the part undecided.
"""

import bisect
import math
from dataclasses import dataclass, replace
from enum import Enum

from rec_experiments.analysis.results.aggregate import CONFIDENCE, t_factor

MOST_SEEDS = 1000  # up to which the number that would decide is looked for
ROUNDING = 1e-9  # a spread below it is none, and so is a distance from the end of a range


class Outcome(Enum):
    supported = "supported"
    contradicted = "contradicted"
    undecided = "undecided"
    not_run = "not run"


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """Where a number must lie, ends excluded, and why there."""

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
    """The outcome of one of `parts` parts. mean, spread (standard deviation): over the seeds."""
    low, high = range_.low + ROUNDING, range_.high - ROUNDING  # beyond them, rounding aside
    half = _half_width(seeds, spread, CONFIDENCE)
    if low < mean - half and mean + half < high:
        return Outcome.supported
    half = _half_width(seeds, spread, 1 - (1 - CONFIDENCE) / parts)
    if mean + half <= low or high <= mean - half:
        return Outcome.contradicted
    return Outcome.undecided


def _half_width(seeds: int, spread: float, confidence: float) -> float:
    """Of the interval that judges: of equal values 0 where they are enough, infinite otherwise."""
    if spread > ROUNDING:
        return spread * t_factor(seeds, confidence)
    return 0.0 if 0.5 ** (seeds - 1) <= 1 - confidence else math.inf


def seeds_to_decide(mean: float, spread: float, range_: Range, parts: int) -> int | None:
    """Fewest seeds that would decide; None if more than MOST_SEEDS.

    More seeds only make intervals narrower, so a bisection finds it.
    """

    def decided(seeds: int) -> bool:
        return decide(seeds, mean, spread, range_, parts) is not Outcome.undecided

    candidates = range(2, MOST_SEEDS + 1)
    at = bisect.bisect_left(candidates, True, key=decided)
    return candidates[at] if at < len(candidates) else None
