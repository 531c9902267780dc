"""The best of k responses: an advantage, and the off-policy gradient (arXiv 2510.23393)."""

import math
from typing import ClassVar

from pydantic import PositiveFloat, PositiveInt

from rec_experiments.algo.inputs import LossInput
from rec_experiments.algo.weights import MAX_LOG_WEIGHT
from rec_experiments.common.batch import Tensor
from rec_experiments.common.pieces import Needs, Piece


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


class OffPolicyBest(Piece):
    """−c_i log π_θ(y_i) with c_i = K/C(K, k) Σ_I (1 + Σ_{j in I} δ_j) max_I A over the sets I of k
    live responses of the group that contain i, and δ_j = Π_t ρ_t − 1 of response j. This is Eq. 10
    of Section 3.3, which expands the product of ratios to first order, with the coefficients w'_ij
    of Appendix E. c_i is a constant. With δ = 0 it equals MaxAtK without a baseline.

    A must be the reward itself (`advantage=plain`), and `weight=zero` must remove the surrogate.
    Subtracting a constant from all rewards of a group changes the estimate, but not, to first
    order, its expectation.

    bound: of |δ_j|; null for none. The authors' code has one (Listing 3), but the paper does not
    state its value. A group of fewer than k responses is one set.
    """

    needs: ClassVar[Needs] = Needs(whole_batch=True)
    k: PositiveInt
    bound: PositiveFloat | None

    def __call__(self, batch: LossInput) -> Tensor | None:
        worth_B1 = self.worth(batch)[:, None].to(batch.logp_BT.dtype)
        return -batch.of_live_BT(worth_B1 * batch.logp_BT)

    def worth(self, batch: LossInput) -> Tensor:
        """c of each response; 0 for one without a live token."""
        delta_B = batch.log_ratio_BT().double().sum(1).clamp(max=MAX_LOG_WEIGHT).expm1()
        if self.bound is not None:
            delta_B = delta_B.clamp(-self.bound, self.bound)
        reward_B = batch.advantages.advantage_B
        worth_B = reward_B.new_zeros(reward_B.shape)
        live_B = batch.mask_BT.any(1)
        for group in batch.groups_B[live_B].unique():
            rows_K = ((batch.groups_B == group) & live_B).nonzero().flatten()
            ascending_K = rows_K[reward_B[rows_K].argsort()]
            worth_B[ascending_K] = self._of_group(reward_B[ascending_K], delta_B[ascending_K])
        return worth_B

    def _of_group(self, ascending_K: Tensor, delta_K: Tensor) -> Tensor:
        """Rewards are in ascending order, so the last response j of a set is its maximum. Every
        other response before j is in equally many of the sets that contain i and end with j."""
        size, k = len(ascending_K), min(self.k, len(ascending_K))
        before_K = delta_K.cumsum(0) - delta_K  # Σ of δ over the responses before
        own_K = _choose(ascending_K, k, 1) * (1 + delta_K) + _choose(ascending_K, k, 2) * before_K
        pair_K, triple_K = _choose(ascending_K, k, 2), _choose(ascending_K, k, 3)
        shared_K = ascending_K * (pair_K * (1 + delta_K) + triple_K * before_K)
        per_delta_K = ascending_K * (pair_K - triple_K)  # for i's own δ in sets that end with j
        found_K = own_K * ascending_K + sum_of_later(shared_K) + delta_K * sum_of_later(per_delta_K)
        return found_K * size / math.comb(size, k)

    def describe(self) -> str:
        bound = "" if self.bound is None else f", at most ± {self.bound:g}"
        return (
            f"−c · log π_θ(y), c = K·(mean over sets of {self.k} of (1 + Σ δ)·best), "
            f"δ = Π ρ − 1{bound}"
        )


def _choose(like_K: Tensor, k: int, held: int) -> Tensor:
    """C(j − held + 1, k − held) for j = 0, 1, …: the number of sets of k that end with j, given
    `held` of their members, including j."""
    counts = [
        float(math.comb(j + 1 - held, k - held)) if j + 1 >= held and k >= held else 0.0
        for j in range(len(like_K))
    ]
    return like_K.new_tensor(counts)
