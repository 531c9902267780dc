"""What becomes of a response that was cut at the length limit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

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

    def describe(self) -> str:
        return ""


@dataclass(kw_only=True)
class MaskTruncated(Piece):
    """Left out of loss and denominators (DAPO, Section 3.4: overlong filtering). Its reward stays
    in the baseline of its group: how good the others are is known from all that was tried."""

    def __call__(self, rewards_B: Tensor, finished_B: Tensor) -> tuple[Tensor, Tensor]:
        return rewards_B, finished_B

    def describe(self) -> str:
        return "responses cut at the limit are masked out"


@dataclass(kw_only=True)
class PenaliseTruncated(Piece):
    """`penalty` is taken off its reward. Raises ValueError unless penalty ≥ 0."""

    penalty: float

    def __post_init__(self) -> None:
        if not 0 <= self.penalty < math.inf:
            raise ValueError(f"penalty={self.penalty}: must be at least 0, and finite")

    def __call__(self, rewards_B: Tensor, finished_B: Tensor) -> tuple[Tensor, Tensor]:
        return rewards_B - self.penalty * (~finished_B), finished_B.new_ones(finished_B.shape)

    def describe(self) -> str:
        return f"responses cut at the limit lose {self.penalty:g} of their reward"
