"""From the rewards of a mini-batch to the advantage of each response: how responses that were cut
count, the advantage within a group, and the weight of each response (Section 4.3).

Rewards and advantages are float64, B rows. Group ids are any integers; the rows of one id answer
the same prompt.
"""

from __future__ import annotations

import functools
import math
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Protocol,
    runtime_checkable,
)

from pydantic import Field, NonNegativeFloat, PositiveFloat

from rec_experiments.common.batch import Tensor
from rec_experiments.common.errors import UserError
from rec_experiments.common.pieces import Needs, Piece

if TYPE_CHECKING:
    import numpy as np

FLOAT32_EPSILON = 2.0**-23  # the distance from 1 to the next number


@runtime_checkable
class Truncation(Protocol):
    def __call__(self, rewards_B: Tensor, finished_B: Tensor) -> tuple[Tensor, Tensor]:
        """The rewards to learn from, and the rows whose tokens enter the loss."""

    def describe(self) -> str:
        """What happens to such responses, in words; empty for nothing."""


@runtime_checkable
class Advantage(Protocol):
    def __call__(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        """Advantage of each response; all rows of a group are present. A piece whose `needs` has
        `lengths` also gets lengths_B, the number of tokens of each response, by name."""

    def describe(self) -> str:
        """The formula as text."""


class Weighted(NamedTuple):
    """advantage_B: float64. live_B: rows in the loss. counted_B: rows whose tokens count in the
    denominator, which include all live rows."""

    advantage_B: Tensor
    live_B: Tensor
    counted_B: Tensor


@runtime_checkable
class DataWeighting(Protocol):
    def __call__(
        self, advantage: Advantage, rewards_B: Tensor, groups_B: Tensor, rng: np.random.Generator
    ) -> Weighted:
        """Weighted advantages. `rng` is the only randomness."""

    def describe(self, advantage: str) -> str:
        """The formula, given the advantage's."""


def _of_all(advantage_B: Tensor) -> Weighted:
    all_B = advantage_B.new_ones(advantage_B.shape).bool()
    return Weighted(advantage_B, all_B, all_B)


# Sums and means within groups ------------------------------------------------------------------


def group_sum(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """For each row the sum of `values_B` over the rows of its group."""
    ids_G, row_group_B = groups_B.unique(return_inverse=True)
    totals_G = values_B.new_zeros(len(ids_G))
    return totals_G.index_add(0, row_group_B, values_B)[row_group_B]


def group_size(groups_B: Tensor) -> Tensor:
    """For each row the number of rows in its group, as float64."""
    return group_sum(groups_B.new_ones(groups_B.shape).double(), groups_B)


def group_mean(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """For each row the mean of `values_B` over its group."""
    return group_sum(values_B, groups_B) / group_size(groups_B)


def group_max(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """For each row the largest of `values_B` within its group."""
    ids_G, row_group_B = groups_B.unique(return_inverse=True)
    empty_G = values_B.new_full((len(ids_G),), -math.inf)
    return empty_G.scatter_reduce(0, row_group_B, values_B, "amax")[row_group_B]


def center(values_B: Tensor, groups_B: Tensor) -> Tensor:
    """values − group mean; exactly 0 for a value that equals the mean.

    Rewards are often computed in float32, so differences below float32's rounding of the largest
    reward count as 0. Otherwise rounding errors would split equal rewards into positives and
    negatives, and division by their tiny standard deviation would make them as large as advantages.
    """
    difference_B = values_B - group_mean(values_B, groups_B)
    rounding_B = FLOAT32_EPSILON * group_max(values_B.abs(), groups_B)
    return difference_B.masked_fill(difference_B.abs() <= rounding_B, 0.0)


# Responses that were cut -----------------------------------------------------------------------


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


# Advantages ------------------------------------------------------------------------------------


class AsGiven(Piece):
    """The rewards, unchanged: they are advantages that the caller has computed."""

    formula = "A as given"

    def __call__(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        return rewards_B


class GroupMean(Piece):
    """r_i − (r̄ + shift). Eq. 1 with shift 0; AsymRE (Section 4.2) with shift −τ."""

    shift: float

    def __call__(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        return center(rewards_B, groups_B) - self.shift

    def describe(self) -> str:
        return f"(r − (r̄ {self.shift:+g}))" if self.shift else "(r − r̄)"


class GroupStandard(Piece):
    """(r_i − r̄) / (σ_r + epsilon), the advantage of GRPO (Eq. 8).

    ddof: 0 for the population's standard deviation, 1 for the sample's. A group of one, or of
    equal rewards, has advantage 0.
    """

    formula = "(r − r̄)/σ_r"

    ddof: Literal[0, 1]
    epsilon: NonNegativeFloat

    def __call__(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        centered_B = center(rewards_B, groups_B)
        degrees_B = (group_size(groups_B) - self.ddof).clamp(min=1)
        deviation_B = (group_sum(centered_B**2, groups_B) / degrees_B).sqrt()
        return centered_B / (deviation_B + self.epsilon).clamp(min=1e-300)


class GroupWhitened(Piece):
    """(r_i − r̄) / √(σ_r² + epsilon) with the population's variance (arXiv 2505.22257, Eq. 2)."""

    formula = "(r − r̄)/√(σ_r² + {epsilon:g})"

    epsilon: NonNegativeFloat

    def __call__(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        centered_B = center(rewards_B, groups_B)
        variance_B = group_mean(centered_B**2, groups_B)
        return centered_B / (variance_B + self.epsilon).clamp(min=1e-300).sqrt()


class BatchStandard(Piece):
    """(r_i − r̄) / (σ + epsilon) with the standard deviation σ of all r_i − r̄ of the mini-batch, not
    of the group's (ScaleRL, arXiv 2510.13786)."""

    formula = "(r − r̄)/σ, σ of all r − r̄ of the mini-batch"

    epsilon: NonNegativeFloat

    def __call__(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        centered_B = center(rewards_B, groups_B)
        deviation = (centered_B**2).sum().div(max(1, len(centered_B))).sqrt()
        return centered_B / (deviation + self.epsilon).clamp(min=1e-300)


class BatchMean(Piece):
    """r_i − r̄ with the mean r̄ of all rewards of the mini-batch: a baseline for prompts with one
    response. SAO (arXiv 2607.07508) has a critic, others a running mean in its place."""

    formula = "(r − r̄), r̄ of the mini-batch"

    def __call__(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        return center(rewards_B, groups_B.new_zeros(groups_B.shape))


class LengthWeighted(Piece):
    """r_i − b with b = Σ_j l_j r_j/Σ_j l_j over the group, l_j the number of tokens of response j:
    the baseline of least variance if a response's gradient grows with its length (OPO, arXiv
    2505.23585). A group of one has advantage 0."""

    formula = "(r − Σ l r/Σ l), l the length of a response"

    needs: ClassVar[Needs] = Needs(lengths=True)

    def __call__(self, rewards_B: Tensor, groups_B: Tensor, lengths_B: Tensor) -> Tensor:
        centered_B = center(rewards_B, groups_B)
        total_B = group_sum(lengths_B, groups_B).clamp(min=1)
        return centered_B - group_sum(lengths_B * centered_B, groups_B) / total_B


class LeaveOneOut(Piece):
    """r_i minus the mean reward of the group's other responses (RLOO, arXiv 2402.14740), which is
    K/(K − 1) · (r_i − r̄). A group of one has advantage 0."""

    formula = "(r − r̄ of the others)"

    def __call__(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        size_B = group_size(groups_B)
        return center(rewards_B, groups_B) * size_B / (size_B - 1).clamp(min=1)


class RelativeToMean(Piece):
    """(r_i − r̄) / (r̄ + epsilon): REINFORCE weighted by the inverse success rate. For many
    responses it tends to maximum likelihood (MaxRL, arXiv 2602.02710).

    Raises UserError for a negative reward: the mean of such rewards is not a success rate.
    """

    formula = "(r − r̄)/r̄"

    epsilon: NonNegativeFloat

    def __call__(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        if (rewards_B < 0).any():
            raise UserError(
                f"advantage=relative_to_mean: a reward is {float(rewards_B.min()):g}; "
                "must be at least 0"
            )
        mean_B = group_mean(rewards_B, groups_B)
        return center(rewards_B, groups_B) / (mean_B + self.epsilon).clamp(min=1e-300)


class FixedBaseline(Piece):
    """scale · (r_i − baseline), independent of the other responses. With scale 2 and baseline ½
    rewards of 0 and 1 become −1 and 1.
    """

    formula = "{scale:g}·(r − {baseline:g})"

    baseline: float
    scale: PositiveFloat

    def __call__(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        return self.scale * (rewards_B - self.baseline)


class OptimalValue(Piece):
    """r_i − V*, V* = β log mean_j exp(r_j/β) over the group: the value of the optimal policy under
    a KL penalty β to the policy that drew the group (arXiv 2505.20686, 2602.19362).

    temperature: β; V* is the mean for β → ∞ and the maximum for β → 0.
    """

    formula = "(r − V*), V* = {temperature:g} · log mean exp(r/{temperature:g})"

    temperature: PositiveFloat

    def __call__(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        below_B = rewards_B - group_max(rewards_B, groups_B)
        mean_B = group_mean((below_B / self.temperature).exp(), groups_B)
        return below_B - self.temperature * mean_B.log()


def with_lengths(advantage: Any, lengths_B: Tensor) -> Any:
    """An advantage as a function of rewards and groups alone."""
    if not advantage.needs.lengths:
        return advantage
    return functools.partial(advantage, lengths_B=lengths_B.double())


# Weights of responses --------------------------------------------------------------------------


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
