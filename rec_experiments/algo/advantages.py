"""The advantage of each response within its group. Inputs and outputs are float64, B rows."""

import functools
import math
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from rec_experiments.algo.groups import center, group_max, group_mean, group_size, group_sum
from rec_experiments.common.batch import Tensor
from rec_experiments.common.errors import UserError
from rec_experiments.common.pieces import Needs, Piece


@runtime_checkable
class Advantage(Protocol):
    def __call__(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        """Advantage of each response; all rows of a group are present. A piece whose `needs` has
        `lengths` also gets lengths_B, the number of tokens of each response, by name."""

    def describe(self) -> str:
        """The formula as text."""


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


class MaxAtK(Piece):
    """K r̃_i with r̃_i = 1/C(K, k) Σ_I max_I r over the sets I of k responses that contain i: the
    group's mean of A_i ∇log π(y_i) is an unbiased gradient of the best of k (Eq. 9 of arXiv
    2510.23393; Walder and Karkhanis, arXiv 2505.15201). A group of fewer than k is one set.

    without_own: subtract from each term the maximum over I without i. This has expectation 0 and
    lowers the variance; a group of one then has advantage 0. With k = 1 nothing is subtracted.
    """

    k: PositiveInt
    without_own: bool

    def __call__(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        advantage_B = rewards_B.new_zeros(rewards_B.shape)
        for group in groups_B.unique():
            rows_K = (groups_B == group).nonzero().flatten()
            ascending_K = rows_K[rewards_B[rows_K].argsort()]
            advantage_B[ascending_K] = self._of_group(rewards_B[ascending_K])
        return advantage_B

    def _of_group(self, ascending_K: Tensor) -> Tensor:
        """The last response of a set is its maximum; C(n, m) counts the sets with that maximum."""
        size, k = len(ascending_K), min(self.k, len(ascending_K))
        own_K = ascending_K.new_tensor([math.comb(i, k - 1) for i in range(size)])
        if self.k == 1 or not self.without_own:
            pairs = [math.comb(j - 1, k - 2) if j > 0 and k > 1 else 0 for j in range(size)]
            found_K = own_K * ascending_K + sum_of_later(own_K.new_tensor(pairs) * ascending_K)
        else:  # sets in which another response is the best have the same best without i
            above_K = ascending_K - ascending_K[0]  # exactly 0 where all rewards are equal
            others_K = own_K.new_tensor([math.comb(j, k - 2) if k > 1 else 0 for j in range(size)])
            found_K = own_K * above_K - _sum_of_earlier(others_K * above_K)
        return found_K * size / math.comb(size, k)

    def describe(self) -> str:
        others = " − best of the others" if self.without_own else ""
        return f"K·(mean over sets of {self.k} of best{others})"


def sum_of_later(values_K: Tensor) -> Tensor:
    """For each entry the sum of the later ones."""
    return values_K.sum() - values_K.cumsum(0)


def _sum_of_earlier(values_K: Tensor) -> Tensor:
    return values_K.cumsum(0) - values_K


def with_lengths(advantage: Any, lengths_B: Tensor) -> Any:
    """An advantage as a function of rewards and groups alone."""
    if not advantage.needs.lengths:
        return advantage
    return functools.partial(advantage, lengths_B=lengths_B.double())
