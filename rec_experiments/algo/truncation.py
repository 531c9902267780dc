"""What becomes of a response that was cut at the length limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rec_experiments.algo.ranges import check_at_least
from rec_experiments.types import Piece

if TYPE_CHECKING:
    from torch import Tensor


class Truncation(Protocol):
    def __call__(self, rewards_B: Tensor, finished_B: Tensor) -> tuple[Tensor, Tensor]:
        """The rewards to learn from, and which rows' tokens count for the loss."""

    def describe(self) -> str:
        """What happens, for people; empty for nothing."""


@dataclass(kw_only=True)
class TrainTruncated(Piece):
    """Trained on as if it were complete, with the reward that its text earned."""

    def __call__(self, rewards_B: Tensor, finished_B: Tensor) -> tuple[Tensor, Tensor]:
        return rewards_B, finished_B.new_ones(finished_B.shape)


@dataclass(kw_only=True)
class MaskTruncated(Piece):
    """Left out of loss and denominators (DAPO, Section 3.4: overlong filtering). Its reward stays
    in the baseline of its group: how good the others are is known from all that was tried."""

    def __call__(self, rewards_B: Tensor, finished_B: Tensor) -> tuple[Tensor, Tensor]:
        return rewards_B, finished_B


@dataclass(kw_only=True)
class PenaliseTruncated(Piece):
    """`penalty` is taken off its reward. Raises ValueError unless penalty ≥ 0."""

    penalty: float

    def __post_init__(self) -> None:
        check_at_least(0, self, "penalty")

    def __call__(self, rewards_B: Tensor, finished_B: Tensor) -> tuple[Tensor, Tensor]:
        return rewards_B - self.penalty * (~finished_B), finished_B.new_ones(finished_B.shape)
