"""How per-token losses become one scalar. Denominators are those of the whole mini-batch."""

from typing import Protocol, runtime_checkable

from rec_experiments.algo.inputs import Advantages
from rec_experiments.common.batch import Tensor
from rec_experiments.common.pieces import Piece


@runtime_checkable
class Aggregation(Protocol):
    def __call__(self, loss_BT: Tensor, advantages: Advantages) -> Tensor:
        """These rows' share of the loss; the shares of all micro-batches add up to it.

        loss_BT is 0 outside the live tokens.
        """

    def describe(self) -> str:
        """The normalisation in words."""


class TokenMean(Piece):
    """Sum over tokens / live tokens of the mini-batch, as the paper's runs did."""

    formula = "mean over the response tokens of the whole mini-batch"

    def __call__(self, loss_BT: Tensor, advantages: Advantages) -> Tensor:
        return loss_BT.sum() / max(1, advantages.totals.tokens)


class SequenceMean(Piece):
    """Token sums, mean over the live sequences of each group, then over the groups that have one:
    the 1/K Σ_i Σ_t of Eq. 1 and Eq. 8, the 1/|S| Σ_{i∈S} Σ_t of Eq. 10."""

    formula = "token sums, mean over the sequences of a group, then over the groups"

    def __call__(self, loss_BT: Tensor, advantages: Advantages) -> Tensor:
        share_B = loss_BT.sum(1) / advantages.counted_B.clamp(min=1)
        return share_B.sum() / max(1, advantages.totals.groups)


class SequenceTokenMean(Piece):
    """Token means of each sequence, mean over the live sequences of each group, then over the
    groups that have one: the 1/|y_i| Σ_t of GRPO as it was first written, and of GSPO."""

    formula = "token means, mean over the sequences of a group, then over the groups"

    def __call__(self, loss_BT: Tensor, advantages: Advantages) -> Tensor:
        length_B = advantages.mask_BT.sum(1).clamp(min=1)
        share_B = loss_BT.sum(1) / length_B / advantages.counted_B.clamp(min=1)
        return share_B.sum() / max(1, advantages.totals.groups)


class GroupTokenMean(Piece):
    """Sum over the tokens of a group / its live tokens, mean over the groups: the prompt-level
    average of ScaleRL (arXiv 2510.13786) and of DAPO's Eq. 8."""

    formula = "mean over the response tokens of a group, then over the groups"

    def __call__(self, loss_BT: Tensor, advantages: Advantages) -> Tensor:
        share_B = loss_BT.sum(1) / advantages.group_tokens_B.clamp(min=1)
        return share_B.sum() / max(1, advantages.totals.groups)
