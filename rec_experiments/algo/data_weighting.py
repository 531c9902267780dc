"""Data weighting: which responses enter the advantage, and how much each counts (Section 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple, Protocol, runtime_checkable

from pydantic import Field

from rec_experiments.algo.advantages import Advantage
from rec_experiments.algo.groups import center, group_size, group_sum
from rec_experiments.common.batch import Tensor
from rec_experiments.common.pieces import Piece

if TYPE_CHECKING:
    import numpy as np


class Weighted(NamedTuple):
    """advantage_B: float64. live_B: rows in the loss. counted_B: rows whose tokens count in the
    denominator, which include all live rows."""

    advantage_B: Tensor
    live_B: Tensor
    counted_B: Tensor


def _of_all(advantage_B: Tensor) -> Weighted:
    all_B = advantage_B.new_ones(advantage_B.shape).bool()
    return Weighted(advantage_B, all_B, all_B)


@runtime_checkable
class DataWeighting(Protocol):
    def __call__(
        self, advantage: Advantage, rewards_B: Tensor, groups_B: Tensor, rng: np.random.Generator
    ) -> Weighted:
        """Weighted advantages. `rng` is the only randomness."""

    def describe(self, advantage: str) -> str:
        """The formula, given the advantage's."""


class Uniform(Piece):
    """Every response has the same weight."""

    formula = "{0}"

    def __call__(
        self, advantage: Advantage, rewards_B: Tensor, groups_B: Tensor, rng: np.random.Generator
    ) -> Weighted:
        return _of_all(advantage(rewards_B, groups_B))


class DropNegatives(Piece):
    """RED-Drop (Eq. 10): drop excess negatives at random, then recompute the advantages.

    A response is positive if r ≥ r̄. A group keeps at most as many negatives as positives.
    count_dropped: whether the tokens of dropped responses stay in the denominator. Eq. 10
    normalises by the kept subset; the paper's framework counted all.
    """

    formula = "{0} on the subset with excess negatives dropped"

    count_dropped: bool

    def __call__(
        self, advantage: Advantage, rewards_B: Tensor, groups_B: Tensor, rng: np.random.Generator
    ) -> Weighted:
        kept_B = keep_balanced(rewards_B, groups_B, rng)
        advantage_B = rewards_B.new_zeros(rewards_B.shape)
        advantage_B[kept_B] = advantage(rewards_B[kept_B], groups_B[kept_B])
        if self.count_dropped:
            return _of_all(advantage_B)
        return Weighted(advantage_B, kept_B, kept_B)


def keep_balanced(rewards_B: Tensor, groups_B: Tensor, rng: np.random.Generator) -> Tensor:
    """Rows that stay when each group keeps at most as many negatives (r < r̄) as positives."""
    import torch

    negative_B = center(rewards_B, groups_B) < 0
    allowed_B = group_sum((~negative_B).double(), groups_B)
    lottery_B = torch.from_numpy(rng.random(len(rewards_B))).to(rewards_B.device)
    same_group_BB = groups_B[:, None] == groups_B[None, :]
    drawn_before_BB = same_group_BB & negative_B & (lottery_B[None, :] < lottery_B[:, None])
    return ~negative_B | (drawn_before_BB.sum(1) < allowed_B)


class VariedGroups(Piece):
    """Masks out groups whose rewards are all equal, including their penalty (arXiv 2505.22257,
    Eq. 8). DAPO replaces them instead: buffer=refill. count_masked: whether their tokens stay in
    the denominator, as in Eq. 8, which averages over all prompts."""

    formula = "{0}, groups of equal rewards masked out"

    count_masked: bool

    def __call__(
        self, advantage: Advantage, rewards_B: Tensor, groups_B: Tensor, rng: np.random.Generator
    ) -> Weighted:
        varied_B = group_sum(center(rewards_B, groups_B).abs(), groups_B) > 0
        counted_B = varied_B.new_ones(varied_B.shape) if self.count_masked else varied_B
        return Weighted(advantage(rewards_B, groups_B) * varied_B, varied_B, counted_B)


class Exponential(Piece):
    """w_i = exp(A_i / temperature). The temperature may be infinite."""

    temperature: Annotated[float, Field(gt=0, allow_inf_nan=True)]

    def weight(self, advantage_B: Tensor) -> Tensor:
        return (advantage_B / self.temperature).exp()


class ExponentialWeight(Exponential):
    """RED-Weight (Section 4.3): w_i A_i."""

    formula = "exp(A/{temperature:g})·A with A = {0}"

    def __call__(
        self, advantage: Advantage, rewards_B: Tensor, groups_B: Tensor, rng: np.random.Generator
    ) -> Weighted:
        advantage_B = advantage(rewards_B, groups_B)
        return _of_all(self.weight(advantage_B) * advantage_B)


class PairwiseWeight(Exponential):
    """Pairwise-weighted REINFORCE (Eq. 9): (Σ_j w_ij)(A_i − Σ_j w_ij A_j / Σ_j w_ij).

    With w_ij = w_i w_j / K it is RED-Weight without its imitation term. An infinite temperature
    gives w_ij = 1/K, which is REINFORCE.
    """

    formula = "(Σ_j w_j/K)·w·(A − Ā_w) with w = exp(A/{temperature:g}), A = {0}"

    def __call__(
        self, advantage: Advantage, rewards_B: Tensor, groups_B: Tensor, rng: np.random.Generator
    ) -> Weighted:
        advantage_B = advantage(rewards_B, groups_B)
        return _of_all(pairwise(advantage_B, self.weight(advantage_B), groups_B))


def pairwise(values_B: Tensor, weight_B: Tensor, groups_B: Tensor) -> Tensor:
    """Σ_j w_ij (v_i − v_j) within each group of K rows, for w_ij = w_i w_j / K (Eq. 9)."""
    total_B = group_sum(weight_B, groups_B)
    weighted_B = group_sum(weight_B * values_B, groups_B)
    return weight_B * (total_B * values_B - weighted_B) / group_size(groups_B)
