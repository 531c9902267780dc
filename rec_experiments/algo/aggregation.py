"""How per-token losses become one scalar. Denominators are those of the whole mini-batch."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from rec_experiments.types import Piece, Totals


class Aggregation(Protocol):
    def __call__(self, loss_BT: Tensor, totals: Totals) -> Tensor:
        """This micro-batch's share of the loss; the shares of all micro-batches add up to it.

        loss_BT is 0 outside the live tokens.
        """

    def describe(self) -> str:
        """The normalisation, for people."""


@dataclass(kw_only=True, slots=True)
class TokenMean(Piece):
    """Sum over tokens / live tokens of the mini-batch, as the paper's runs did."""

    def __call__(self, loss_BT: Tensor, totals: Totals) -> Tensor:
        return loss_BT.sum() / max(1, totals.tokens)

    def describe(self) -> str:
        return "mean over the response tokens of the whole mini-batch"


@dataclass(kw_only=True, slots=True)
class SequenceMean(Piece):
    """Sum over tokens / live sequences of the mini-batch: the 1/K Σ_i Σ_t of Eq. 1 and Eq. 8."""

    def __call__(self, loss_BT: Tensor, totals: Totals) -> Tensor:
        return loss_BT.sum() / max(1, totals.sequences)

    def describe(self) -> str:
        return "token sums, mean over the sequences of the whole mini-batch"
