"""What an algorithm is given for a mini-batch, and what its loss returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rec_experiments.common.batch import StepIndex, Tensor

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcomes of a mini-batch of B rows, from which advantages are computed.

    rewards_B: float64. groups_B: integer ids; rows of one id answer the same prompt, and groups are
    complete. mask_BT: response tokens of the policy. finished_B: the policy ended its response;
    otherwise it was cut at the length limit. judged_B: the verifier returned a result.
    """

    rewards_B: Tensor
    groups_B: Tensor
    mask_BT: Tensor
    finished_B: Tensor
    judged_B: Tensor


@dataclass(frozen=True, slots=True)
class Totals:
    """Denominators of a mini-batch: counted tokens, and groups with a counted sequence."""

    tokens: int
    groups: int


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages and live tokens of a mini-batch.

    advantage_B: the factor of each sequence's log-probability gradient, float64.
    mask_BT: live tokens, those in the loss; a dropped sequence has none.
    counted_B: number of sequences of the row's group that count in denominators.
    group_tokens_B: number of their tokens.
    totals: of the whole mini-batch, over all micro-batches and ranks.
    """

    advantage_B: Tensor
    mask_BT: Tensor
    counted_B: Tensor
    group_tokens_B: Tensor
    totals: Totals

    def to(self, device: torch.device) -> Advantages:
        """On this device."""
        return Advantages(
            self.advantage_B.to(device),
            self.mask_BT.to(device),
            self.counted_B.to(device),
            self.group_tokens_B.to(device),
            self.totals,
        )

    def rows(self, index_B: Tensor, width: int) -> Advantages:
        """Some rows, cut to `width` tokens; the denominators stay those of the whole mini-batch."""
        return Advantages(
            self.advantage_B[index_B],
            self.mask_BT[index_B, :width],
            self.counted_B[index_B],
            self.group_tokens_B[index_B],
            self.totals,
        )


class Undeclared(KeyError):
    """A piece reads log-probabilities or a dense quantity that no piece's `needs` declares."""

    def __init__(self, name: str):
        super().__init__(f"{name}: no piece declares it in its `needs`")
        self.name = name


class _Given(dict[str, Any]):
    """The tensors that pieces declare, by name."""

    def __missing__(self, name: str) -> Any:
        raise Undeclared(name)


@dataclass(frozen=True, slots=True)
class LossInput:
    """The input of a loss: a whole mini-batch, or some of its rows. Tensors are B x T unless named
    otherwise; positions outside `mask_BT` may hold anything.

    logp_BT: of the current policy, differentiable.
    logps: of other policies by role, without gradient: `behavior`, and those that a piece needs.
    groups_B: rows of one id answer the same prompt.
    version_BX: the gradient steps that the policy had taken that drew a token, X = T, or all tokens
    of a row, X = 1.
    dense: what `Needs.dense` names, differentiable.

    Reading a role or a dense quantity that no piece declares raises Undeclared.
    """

    logp_BT: Tensor
    logps: Mapping[str, Tensor]
    advantages: Advantages
    groups_B: Tensor
    version_BX: Tensor
    index: StepIndex
    dense: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "logps", _Given(self.logps))
        object.__setattr__(self, "dense", _Given(self.dense))

    @property
    def mask_BT(self) -> Tensor:
        """Live tokens."""
        return self.advantages.mask_BT

    @property
    def advantage_B(self) -> Tensor:
        """In the dtype of the log-probabilities."""
        return self.advantages.advantage_B.to(self.logp_BT.dtype)

    @property
    def age_BX(self) -> Tensor:
        """Gradient steps since the version that drew a token, X = T, or a row, X = 1."""
        return self.index.step - self.version_BX

    def of_live_BT(self, values_BT: Tensor) -> Tensor:
        """The values of live tokens; 0 elsewhere."""
        return values_BT.where(self.mask_BT, 0.0)

    def difference_BT(self, role: str = "behavior") -> Tensor:
        """log π_θ − log π_role of live tokens, differentiable; 0 elsewhere."""
        return self.of_live_BT(self.logp_BT - self.logps[role])

    def log_ratio_BT(self, role: str = "behavior") -> Tensor:
        """The same, detached."""
        return self.difference_BT(role).detach()

    def mean_B(self, values_BT: Tensor) -> Tensor:
        """The mean over the live tokens of each row, where `values_BT` is 0 elsewhere."""
        return values_BT.sum(1) / self.mask_BT.sum(1).clamp(min=1)


@dataclass(frozen=True, slots=True)
class LossOutput:
    """loss: a scalar to differentiate. log_ratio_BT: log ρ of each live token. clip_log_ratio_BT:
    log of the clip's ratio, which may differ from ρ, such as one for the whole sequence. keep_BT:
    live tokens that the clip keeps."""

    loss: Tensor
    log_ratio_BT: Tensor
    clip_log_ratio_BT: Tensor
    keep_BT: Tensor
