"""The schedule: which policy version draws a batch.

It counts batches: version v is the policy that has been trained on v of them. In the paper, where
each batch gives one gradient step, these are gradient steps. See Section 4 and Appendix B.2 of the
paper; its Figure 2 is drawn from these functions.

`InFlight` is not in the paper: weights are swapped in while responses are being written, as in
PipelineRL (arXiv 2509.19128) and AReaL (arXiv 2505.24298).
"""

from bisect import bisect_left, bisect_right
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from rec_experiments.types import Piece, Rollouts, Tensor

# How interval and offset combine when interval > 1 and offset > 0; elsewhere they agree. paper:
# staleness (l mod m) + n. framework: ((l - n) mod m) + n, as the paper's code behaves.
Phase = Literal["paper", "framework"]


class Schedule(Piece):
    """(sync_interval m, sync_offset n). Without an interval the weights are never synchronised.

    Raises ValueError for an interval below 1, a negative offset, or an offset without an interval.
    """

    interval: PositiveInt | None
    offset: NonNegativeInt
    phase: Phase

    def __post_init__(self) -> None:
        if self.interval is None and self.offset:
            raise ValueError(f"offset={self.offset}: must be 0 for offline data")

    def version(self, batch: int) -> int:
        """Policy version that draws `batch`."""
        if self.interval is None:
            return 0
        lead = batch if self.phase == "paper" else batch - self.offset
        return max(0, batch - lead % self.interval - self.offset)

    def segments(self, batch: int) -> list[tuple[int, int]]:
        """The first token, and the policy version that draws from it on, of each part of the
        responses of `batch`; the last version is `version(batch)`."""
        return [(0, self.version(batch))]

    @property
    def most_versions(self) -> int:
        """The most versions that draw one batch."""
        return 1

    @property
    def keeps_cache(self) -> bool:
        """Whether keys and values of older versions are kept within a response."""
        return False

    def trained(self, rollouts: Rollouts, step: int) -> Rollouts:
        """The rollouts as gradient step number `step` trains on them."""
        return rollouts

    def metrics(self, trained: Rollouts, step: int) -> dict[str, float]:
        """Metrics of rollouts as gradient step number `step` trains on them, besides those of whole
        responses."""
        return {}

    def staleness(self, batch: int) -> int:
        """Batches that the policy is trained on between drawing `batch` and consuming it."""
        return batch - self.version(batch)

    def draws(self, version: int, batches: int) -> range:
        """Which of the first `batches` batches come from `version`: they follow each other."""
        every = range(batches)
        first = bisect_left(every, version, key=self.version)
        return range(first, bisect_right(every, version, key=self.version))

    def bundle_of(self, batch: int, size: int, batches: int) -> range:
        """The batches that are drawn together with `batch`: up to `size` that follow each other and
        come from one version, of the first `batches` batches."""
        draws = self.draws(self.version(batch), batches)
        first = batch - (batch - draws.start) % size
        return range(first, min(first + size, draws.stop))

    def draws_from(self, version: int) -> bool:
        """Whether any batch comes from `version`, so that the sampler needs its weights."""
        horizon = version + self.offset + (self.interval or 1)
        return any(self.version(batch) == version for batch in range(version, horizon + 1))

    def describe(self, updates: int) -> str:
        """A one-line description. updates: gradient steps that each batch gives."""
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


class InFlight(Schedule):
    """Weights are swapped in while responses are being written.

    While the policy is trained on one batch, each response in flight grows by `tokens` tokens. A
    response is begun `versions` - 1 batches before the version that ends it, so that its tokens
    come from up to `versions` versions in a row; `version(batch)` is the last one. Its first tokens
    are offset + versions - 1 batches old when they are trained on, so `versions` limits the age as
    well. Before the first gradient step, all tokens come from the initial policy.

    cache: at a swap, the keys and values of the tokens so far are `recomputed` by the new weights,
    or those of the older weights are `kept`, which is faster and draws from a policy between the
    two. late: what happens to a response that `versions` x `tokens` tokens do not end. `wait`: the
    last version ends it, and training waits for it. `drop`: it is left out of training. It is
    written to its end nevertheless, to be measured. max_age: older tokens, in gradient steps, are
    left out of the loss and its denominators; None for no limit.

    Raises ValueError for an interval other than 1, and for a max_age that leaves no token.
    """

    versions: Annotated[int, Field(ge=2)]
    tokens: PositiveInt
    cache: Literal["recomputed", "kept"]
    late: Literal["wait", "drop"]
    max_age: NonNegativeInt | None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.interval != 1:
            raise ValueError(f"interval={self.interval}: must be 1, a swap for each batch")
        if self.max_age is not None and self.max_age < self.offset:
            raise ValueError(
                f"max_age={self.max_age}: must be at least offset={self.offset}, the age of the "
                "youngest tokens, or null"
            )

    def segments(self, batch: int) -> list[tuple[int, int]]:
        begun = batch - self.offset - (self.versions - 1)
        later = range(max(1, 1 - begun), self.versions)  # of trained versions
        swaps = [(number * self.tokens, begun + number) for number in later]
        return [(0, max(0, begun)), *swaps]

    @property
    def most_versions(self) -> int:
        return self.versions

    @property
    def keeps_cache(self) -> bool:
        return self.cache == "kept"

    def trained(self, rollouts: Rollouts, step: int) -> Rollouts:
        judged_B, mask_BT = rollouts.judged_B, rollouts.mask_BT
        if self.late == "drop":
            judged_B = judged_B & ~self._late_B(rollouts)
        if self.max_age is not None:
            mask_BT = mask_BT & (step - rollouts.version_BX <= self.max_age)
        return replace(rollouts, judged_B=judged_B, mask_BT=mask_BT)

    def _late_B(self, rollouts: Rollouts) -> Tensor:
        """Responses that `versions` x `tokens` tokens do not end."""
        return rollouts.length_B > self.versions * self.tokens

    def metrics(self, trained: Rollouts, step: int) -> dict[str, float]:
        late_B, version_BT = self._late_B(trained), trained.version_BX
        last_B = version_BT.gather(1, trained.length_B[:, None] - 1)[:, 0]
        dropped_B = late_B & (self.late == "drop")
        ages_N = (step - version_BT)[trained.mask_BT & ~dropped_B[:, None]]
        found = {
            "train/several_versions": version_BT[:, 0] < last_B,
            "train/late": late_B,
            "train/late_accuracy": trained.accuracy_B[late_B],
            "train/in_time_length": trained.length_B[~late_B],
            "train/token_age": ages_N,
        }
        means = {name: float(x.double().mean()) for name, x in found.items() if len(x)}
        return means | ({"train/token_age_max": int(ages_N.max())} if len(ages_N) else {})

    def describe(self, updates: int) -> str:
        oldest = (self.offset + self.versions) * updates - 1
        parts = [
            f"weights are swapped in every {self.tokens} tokens, up to {self.versions} versions in "
            f"one response, the oldest token up to {oldest} gradient steps old",
            f"cache {self.cache}",
            "the last version ends late responses"
            if self.late == "wait"
            else "late responses are dropped",
        ]
        if self.max_age is not None:
            parts.append(f"tokens older than {self.max_age} gradient steps are masked")
        return "; ".join(parts)
