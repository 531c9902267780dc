"""The schedule: which policy version draws a batch.

It counts batches: version v is the policy that has been trained on v of them. In the paper, where
each batch gives one gradient step, these are gradient steps. See Section 4 and Appendix B.2 of the
paper; its Figure 2 is drawn from these functions.

`InFlight` is not in the paper: weights are swapped in while responses are being written, as in
PipelineRL (arXiv 2509.19128) and AReaL (arXiv 2505.24298).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from rec_experiments.common.batch import Rollouts, Tensor
from rec_experiments.common.pieces import Piece

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
        """The policy version that draws `batch`."""
        if self.interval is None:
            return 0
        lead = batch if self.phase == "paper" else batch - self.offset
        return max(0, batch - lead % self.interval - self.offset)

    def segments(self, batch: int) -> list[tuple[int, int]]:
        """The parts of the responses of `batch`, each as its first token and the policy version
        that draws it. The last version is `version(batch)`."""
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
        """The rollouts as gradient step number `step` trains on them: with the responses and tokens
        that it leaves out no longer in `judged_B` and `mask_BT`."""
        return rollouts

    def metrics(self, trained: Rollouts, step: int) -> dict[str, float]:
        """Metrics of the tokens that gradient step number `step` trains on, as `trained` returns
        them."""
        return {}

    def ages(self, updates: int, steps: int) -> list[int]:
        """The age of the data at each of the first `steps` gradient steps: the gradient steps since
        the policy that drew it, or that drew the first token of a response of several policies.

        updates: gradient steps that each batch gives. Age rises by 1 at each of them, since the
        policy moves on while the batch stays. The maximum and the mean of this list are those of a
        run. It is constant under an offset with interval 1 and one step a batch, after the first
        `offset` batches; otherwise it is a sawtooth, whose teeth have interval x updates steps.
        """
        return [step - self.segments(step // updates)[0][1] * updates for step in range(steps)]

    def bundle_of(self, batch: int, size: int, batches: int) -> range:
        """The batches that are drawn together with `batch`, itself included: up to `size`
        consecutive ones that come from the same version, of the first `batches`."""
        every, version = range(batches), self.version(batch)
        start = bisect_left(every, version, key=self.version)
        stop = bisect_right(every, version, key=self.version)
        first = batch - (batch - start) % size
        return range(first, min(first + size, stop))

    def draws_from(self, version: int) -> bool:
        """Whether any batch comes from `version`; the sampler then needs its weights."""
        horizon = version + self.offset + (self.interval or 1)
        return any(self.version(batch) == version for batch in range(version, horizon + 1))

    def describe(self, updates: int) -> str:
        """A one-line description. updates: gradient steps that each batch gives."""
        if self.interval is None:
            return "offline: every batch comes from the initial policy"
        if (self.interval, self.offset, updates) == (1, 0, 1):
            return "on-policy: staleness 0"
        period = self.interval * updates
        start = self.offset * updates + period  # before, data of the initial policy is younger
        settled = self.ages(updates, start + period)[start:]
        first, last = min(settled), max(settled)
        steps = f"{first}" if first == last else f"from {first} to {last}"
        return (
            f"interval {self.interval}, offset {self.offset}: staleness {steps} gradient steps"
            + (f" after the first {self.offset} batches" if self.offset else "")
        )


class InFlight(Schedule):
    """Weights are swapped in while responses are being written.

    While the policy is trained on one batch, each response in flight grows by `tokens` tokens. It
    is written by up to `versions` consecutive policies. The last one is `version(batch)`. Its first
    tokens are offset + versions - 1 batches old when they are trained on, so `versions` limits the
    age as well. Before the first gradient step, all tokens come from the initial policy.

    cache: at a swap, the new weights compute the keys and values of earlier tokens again
    (`recomputed`), or those of the older weights stay (`kept`), which is faster and draws from a
    policy between the two. late: a response of more than `versions` x `tokens` tokens is ended by
    the last version while training waits (`wait`), or is left out of training but still written to
    its end, to be measured (`drop`). max_age: older tokens, in gradient steps, are left out of the
    loss and its denominators; None for no limit.

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
        """Responses of more than `versions` x `tokens` tokens."""
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
        oldest = max(self.ages(updates, (self.offset + self.versions) * updates))
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


def ages_of(sync: Mapping[str, Any], updates: Mapping[str, Any], steps: int) -> list[int]:
    """`Schedule.ages` of a run, given the resolved values of its groups sync and updates."""
    kind = InFlight if "versions" in sync else Schedule
    values = {name: sync[name] for name in kind.field_names()}
    return kind(**values).ages(updates["epochs"] * updates["mini_batches"], steps)
