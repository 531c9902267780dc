"""The gradient of the best of k from draws of another policy (arXiv 2510.23393, Section 3.3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rec_experiments.algo.ranges import check_at_least, check_greater
from rec_experiments.algo.weights import MAX_LOG_WEIGHT
from rec_experiments.types import LossInput, Needs, Piece

if TYPE_CHECKING:
    from torch import Tensor

WHOLE = Needs(whole_batch=True)


@dataclass(kw_only=True)
class OffPolicyBest(Piece):
    """−c_i log π_θ(y_i), c_i = K/C(K, k) Σ (1 + Σ_{j in I} δ_j) max_I A over the sets I of k live
    responses of a group with i among them, δ_j = Π_t ρ_t − 1 of response j: Eq. 10, whose product
    of ratios is taken to first order, with the coefficients w'_ij of Appendix E. c_i has no
    gradient. With δ = 0 it is what MaxAtK makes without a baseline.

    Its A is the reward itself: `advantage=plain`, and `weight=zero` takes the usual gradient away.
    A constant off all rewards of a group changes the estimate, to first order not its expectation.

    bound: |δ_j| is at most that. The authors' code bounds it too (Listing 3), and the text does not
    say by what; null for none. A group of fewer than k is one set.

    Raises ValueError for k < 1 or a bound that is not above 0.
    """

    needs: ClassVar[Needs] = WHOLE
    k: int
    bound: float | None

    def __post_init__(self) -> None:
        check_at_least(1, self, "k")
        check_greater(0, self, "bound")

    def __call__(self, batch: LossInput) -> Tensor | None:
        worth_B1 = self.worth(batch)[:, None].to(batch.logp_BT.dtype)
        return -(worth_B1 * batch.logp_BT).where(batch.mask_BT, 0.0)

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
        """Rewards in ascending order: the last of a set is its maximum. The sets whose last is j
        hold j, i and others before j; each of those is in a set as often as any other."""
        size, k = len(ascending_K), min(self.k, len(ascending_K))
        before_K = delta_K.cumsum(0) - delta_K  # Σ of δ over the responses before
        own_K = _choose(ascending_K, k, 1) * (1 + delta_K) + _choose(ascending_K, k, 2) * before_K
        pair_K, triple_K = _choose(ascending_K, k, 2), _choose(ascending_K, k, 3)
        shared_K = ascending_K * (pair_K * (1 + delta_K) + triple_K * before_K)
        per_delta_K = ascending_K * (pair_K - triple_K)  # of i's own δ, in a set whose last is j
        found_K = own_K * ascending_K + _after(shared_K) + delta_K * _after(per_delta_K)
        return found_K * size / math.comb(size, k)


def _choose(like_K: Tensor, k: int, held: int) -> Tensor:
    """C(j − held + 1, k − held) for j = 0, 1, …: sets of k whose last is j, with `held` members
    that are given, j among them."""
    counts = [
        float(math.comb(j + 1 - held, k - held)) if j + 1 >= held and k >= held else 0.0
        for j in range(len(like_K))
    ]
    return like_K.new_tensor(counts)


def _after(values_K: Tensor) -> Tensor:
    """Σ over the later ones."""
    return values_K.sum() - values_K.cumsum(0)
