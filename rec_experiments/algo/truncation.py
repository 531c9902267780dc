"""How responses that were cut at the length limit are treated."""

from typing import Protocol, runtime_checkable

from pydantic import NonNegativeFloat

from rec_experiments.common.batch import Tensor
from rec_experiments.common.pieces import Piece


@runtime_checkable
class Truncation(Protocol):
    def __call__(self, rewards_B: Tensor, finished_B: Tensor) -> tuple[Tensor, Tensor]:
        """The rewards to learn from, and the rows whose tokens enter the loss."""

    def describe(self) -> str:
        """What happens to such responses, in words; empty for nothing."""


class TrainTruncated(Piece):
    """Trains on it like on any other response, with the reward of its text."""

    formula = ""

    def __call__(self, rewards_B: Tensor, finished_B: Tensor) -> tuple[Tensor, Tensor]:
        return rewards_B, finished_B.new_ones(finished_B.shape)


class MaskTruncated(Piece):
    """Leaves it out of loss and denominators (DAPO, Section 3.4: overlong filtering). Its reward
    still counts in the baseline of its group."""

    formula = "responses cut at the limit are masked out"

    def __call__(self, rewards_B: Tensor, finished_B: Tensor) -> tuple[Tensor, Tensor]:
        return rewards_B, finished_B


class PenaliseTruncated(Piece):
    """Subtracts `penalty` from its reward."""

    formula = "responses cut at the limit lose {penalty:g} of their reward"

    penalty: NonNegativeFloat

    def __call__(self, rewards_B: Tensor, finished_B: Tensor) -> tuple[Tensor, Tensor]:
        return rewards_B - self.penalty * (~finished_B), finished_B.new_ones(finished_B.shape)
