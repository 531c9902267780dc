"""Clips that decide on a token by the whole response that contains it."""

import math
from typing import Annotated

from pydantic import Field, NonNegativeFloat

from rec_experiments.algo.clips import OUTWARD, OneSide, outward, total_variation, written
from rec_experiments.algo.inputs import LossInput
from rec_experiments.common.batch import Tensor
from rec_experiments.common.pieces import Piece, Share


class NegativesNearBehavior(OneSide):
    """The one-side mask without the responses that have A < 0 and a mean of log(π_behavior/π_θ)
    above `drift`: off-policy sequence masking (DeepSeek-V3.2, arXiv 2512.02556).

    drift: null for no bound.
    """

    drift: NonNegativeFloat | None

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        kept_BT = super().__call__(log_ratio_BT, batch)
        if self.drift is None:
            return kept_BT
        far_B = batch.mean_B(-batch.log_ratio_BT()) > self.drift
        return kept_BT & ~(far_B & (batch.advantage_B < 0))[:, None]

    def describe(self, ratio: str) -> str:
        far = f"a mean −log ρ > {written(self.drift) or '∞'}"
        return f"{super().describe(ratio)}; drops responses with A < 0 and {far}"


class WorstToken(OneSide):
    """The one-side mask without the responses that have a token with ½ (log ρ)² above `delta`: one
    token far from the behavior policy puts the whole response outside the trust region (TRM, arXiv
    2512.23075, with its symmetric estimate of a token's KL).

    delta: in nats; null for no bound.
    """

    delta: NonNegativeFloat | None

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        kept_BT = super().__call__(log_ratio_BT, batch)
        if self.delta is None:
            return kept_BT
        far_BT = batch.log_ratio_BT() ** 2 / 2 > self.delta
        return kept_BT & ~far_BT.any(1, keepdim=True)

    def describe(self, ratio: str) -> str:
        worst = f"a token with ½(log ρ)² > {written(self.delta) or '∞'}"
        return f"{super().describe(ratio)}; drops responses with {worst}"


class MeanVariation(Piece):
    """Drops tokens with A > 0 and ρ > 1, or A < 0 and ρ < 1, in responses whose mean |ρ − 1| is
    above `bound` (VACO, arXiv 2603.01365, as Open Instruct's rho_mask_tv_divergence has it).

    bound: null for no bound.
    """

    bound: NonNegativeFloat | None

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        bound = math.inf if self.bound is None else self.bound
        far_B = batch.mean_B(batch.log_ratio_BT().expm1().abs()) > bound
        return ~(outward(batch.log_ratio_BT(), batch) & far_B[:, None])

    def describe(self, ratio: str) -> str:
        far = f"a mean |ρ − 1| > {written(self.bound) or '∞'}"
        return f"drops {OUTWARD.format('ρ')} in responses with {far}"


class PrefixBudget(Piece):
    """Drops a token with A > 0 and ρ > 1, or A < 0 and ρ < 1, if w_t D_t > min(delta, delta +
    δ_p Σ_{j<t} w_j − Σ_{j<t} w_j D_j): its change D = |π_θ − π_behavior| may use up what the
    tokens before it have left of their budget (CPPO, arXiv 2606.10968, Eq. 8 to 11).

    The weights w fall linearly from 1 at the first token of the response to `last_weight` at its
    last. δ_p is the 90th percentile of the response's D, at least `budget` and at most twice that.
    """

    formula = (
        "drops w·D > min({delta:g}, {delta:g} + δ_p Σ w − Σ w·D over the tokens before) outwards "
        "[D = |π_θ − π_behavior|, w from 1 to {last_weight:g}, δ_p the 90th percentile of D, at "
        "least {budget:g} and at most twice that]"
    )

    delta: NonNegativeFloat
    budget: NonNegativeFloat
    last_weight: Annotated[float, Field(gt=0, le=1)]

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        mask_BT, moved_BT = batch.mask_BT, total_variation(batch)
        place_BT = (mask_BT.cumsum(1) - 1) / (mask_BT.sum(1, keepdim=True) - 1).clamp(min=1)
        weight_BT = (1 - (1 - self.last_weight) * place_BT) * mask_BT
        used_BT = weight_BT * moved_BT
        rate_B1 = _percentile_90(moved_BT, mask_BT).clamp(self.budget, 2 * self.budget)
        left_BT = rate_B1 * _before(weight_BT) - _before(used_BT)
        inside_BT = used_BT <= self.delta + left_BT.clamp(max=0.0)
        return inside_BT | ~outward(batch.log_ratio_BT(), batch)


class Veto(OneSide):
    """The one-side mask without what follows a trigger: the first token of a response with A < 0
    whose ρ is below `trigger`. After it, the response continues a text that π_θ would hardly write
    (negative-advantage veto of μ-GRPO, arXiv 2605.17570). The trigger itself is not dropped.

    trigger: 0 for no veto.
    """

    trigger: Share

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        kept_BT = super().__call__(log_ratio_BT, batch)
        if self.trigger == 0:
            return kept_BT
        trigger_BT = batch.log_ratio_BT() < math.log(self.trigger)
        return kept_BT & ~((_before(trigger_BT.long()) > 0) & (batch.advantage_B < 0)[:, None])

    def describe(self, ratio: str) -> str:
        after = f"the first token with ρ < {self.trigger:g}"
        return f"{super().describe(ratio)}; where A < 0 drops what follows {after}"


def _before(values_BT: Tensor) -> Tensor:
    """For each token the sum of the earlier ones of its row."""
    return values_BT.cumsum(1) - values_BT


def _percentile_90(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Of the live tokens of each row, interpolated; B x 1, 0 for a row without one."""
    ascending_BT = values_BT.where(mask_BT, math.inf).sort(1).values
    place_B1 = 0.9 * (mask_BT.sum(1, keepdim=True) - 1).clamp(min=0)
    below_B1 = place_B1.long()
    above_B1 = place_B1.ceil().long()
    low_B1, high_B1 = (ascending_BT.gather(1, index) for index in (below_B1, above_B1))
    found_B1 = low_B1 + (place_B1 - below_B1) * (high_B1 - low_B1)
    return found_B1.where(mask_BT.any(1, keepdim=True), 0.0)
