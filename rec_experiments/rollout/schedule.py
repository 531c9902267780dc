"""The schedule: which policy version draws a batch.

It counts batches: version v is the policy that has been trained on v of them. In the paper, where
each is good for one gradient step, these are gradient steps. Section 4 and Appendix B.2 of the
paper; its Figure 2 is drawn from these functions.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from enum import Enum

from rec_experiments.types import check_range


class Phase(Enum):
    """How interval and offset combine when interval > 1 and offset > 0; elsewhere they agree."""

    paper = "paper"  # staleness (l mod m) + n
    framework = "framework"  # staleness ((l - n) mod m) + n, as the paper's code behaves


@dataclass(kw_only=True)
class Schedule:
    """(sync_interval m, sync_offset n). Without an interval the weights are never synchronised.

    Raises ValueError for an interval below 1, a negative offset, or an offset without an interval.
    """

    interval: int | None
    offset: int
    phase: Phase

    def __post_init__(self) -> None:
        check_range(self, "interval", least=1, hint=", or null for offline")
        check_range(self, "offset", least=0)
        if self.interval is None and self.offset:
            raise ValueError(f"offset={self.offset}: must be 0 for offline data")

    def version(self, batch: int) -> int:
        """Policy version that draws `batch`."""
        if self.interval is None:
            return 0
        lead = batch if self.phase is Phase.paper else batch - self.offset
        return max(0, batch - lead % self.interval - self.offset)

    def staleness(self, batch: int) -> int:
        """Batches that the policy is trained on between drawing `batch` and consuming it."""
        return batch - self.version(batch)

    def draws(self, version: int, batches: int) -> range:
        """Which of the first `batches` batches come from `version`: they follow each other."""
        every = range(batches)
        first = bisect_left(every, version, key=self.version)
        return range(first, bisect_right(every, version, key=self.version))

    def draws_from(self, version: int) -> bool:
        """Whether any batch comes from `version`, so that the sampler needs its weights."""
        horizon = version + self.offset + (self.interval or 1)
        return any(self.version(batch) == version for batch in range(version, horizon + 1))

    def describe(self, updates: int) -> str:
        """For people. updates: gradient steps that each batch is good for."""
        if self.interval is None:
            return "offline: every batch comes from the initial policy"
        if (self.interval, self.offset, updates) == (1, 0, 1):
            return "on-policy: staleness 0"
        first = self.offset * updates
        last = (self.offset + self.interval) * updates - 1
        steps = f"{first}" if first == last else f"from {first} to {last}"
        return (
            f"interval {self.interval}, offset {self.offset}: staleness {steps} gradient steps"
            + (f" after the first {self.offset} batches" if self.offset else "")
        )
