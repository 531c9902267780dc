"""The weight of each token's gradient: ρ (IS), 1 (Section 4.1), or another function of ρ.

An objective J(ρ) has the gradient ρ J'(ρ) ∇log π_θ. The factor ρ J'(ρ) is the weight, a constant.
"""

import math
from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat

from rec_experiments.algo.inputs import LossInput
from rec_experiments.common.batch import Tensor
from rec_experiments.common.pieces import Piece

# No step survives a weight of exp(20), and products with it stay finite in float32.
MAX_LOG_WEIGHT = 20.0
MAX_WEIGHT = math.exp(MAX_LOG_WEIGHT)


class ImportanceWeight(Piece):
    """The ratio that the `ratio` piece gives: ρ = π_θ / π_old of each token (IS)."""

    formula = "{0}"

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return log_ratio_BT.clamp(max=MAX_LOG_WEIGHT).exp()


class BehaviorWeight(Piece):
    """ρ = π_θ/π_behavior of each token, whatever ratio the clip uses: (π_prox/π_behavior) · u, the
    weight of decoupled PPO (arXiv 2110.00641)."""

    formula = "ρ"

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return batch.log_ratio_BT().clamp(max=MAX_LOG_WEIGHT).exp()


class CappedWeight(Piece):
    """min(ratio, cap): no token loses its gradient (CISPO, arXiv 2506.13585, Eq. 4 and 5, without a
    lower bound, as that paper runs it)."""

    formula = "min({0}, {cap:g})"

    cap: Annotated[float, Field(gt=0, le=MAX_WEIGHT)]

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return log_ratio_BT.clamp(max=math.log(self.cap)).exp()


class BoundedWeight(CappedWeight):
    """max(floor, min(ratio, cap)): CISPO with both bounds, 1 − ε_low and 1 + ε_high in its Eq. 5,
    as in verl and ROLL. A floor of 0 is no bound.

    Raises ValueError unless 0 ≤ floor ≤ cap.
    """

    formula = "max({floor:g}, min({0}, {cap:g}))"

    floor: NonNegativeFloat

    def __post_init__(self) -> None:
        if self.floor > self.cap:
            raise ValueError(f"floor={self.floor}: must be at most cap={self.cap}")

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return super().__call__(log_ratio_BT, batch).clamp(min=self.floor)


class CappedBehavior(CappedWeight):
    """min(ρ, cap), ρ = π_θ/π_behavior of each token, whatever ratio the clip uses: decoupled
    PPO as in its authors' code (openai/ppo-ewma), which raises log π_behavior where ρ > 100."""

    formula = "min(ρ, {cap:g})"

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return super().__call__(batch.log_ratio_BT(), batch)


class ZeroWeight(Piece):
    """0 for every token: the gradient is that of the extra loss alone."""

    formula = "0"

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return log_ratio_BT.new_zeros(log_ratio_BT.shape)


class TaperedWeight(Piece):
    """1 where A ≥ 0, min(Π_t ρ_t, 1) of the whole response elsewhere (TOPR, arXiv 2503.14286)."""

    formula = "(1 where A ≥ 0, min(Π ρ, 1) where A < 0)"

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        product_B1 = batch.log_ratio_BT().sum(1, keepdim=True).clamp(max=0.0).exp()
        return product_B1.where(batch.advantage_B[:, None] < 0, 1.0).expand_as(log_ratio_BT)


class TokenTaper(Piece):
    """1 where A ≥ 0, min(ρ, 1) of each token elsewhere. ROLL calls it TOPR, but TOPR uses the ratio
    of the whole response (TaperedWeight)."""

    formula = "(1 where A ≥ 0, min(ρ, 1) where A < 0)"

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        taper_BT = batch.log_ratio_BT().clamp(max=0.0).exp()
        return taper_BT.where(batch.advantage_B[:, None] < 0, 1.0)


class SoftGate(Piece):
    """4 σ(x)(1 − σ(x)) · ratio with x = τ (ratio − 1): the gradient of (4/τ) σ(x), which fades out
    on both sides of 1 where a clip cuts (SAPO, arXiv 2511.20347).

    tau_positive: τ where A > 0. tau_negative: elsewhere.
    """

    formula = (
        "4σ(x)(1 − σ(x))·{0} [x = τ({0} − 1), τ = {tau_positive:g} where A > 0, {tau_negative:g} "
        "elsewhere]"
    )

    tau_positive: PositiveFloat
    tau_negative: PositiveFloat

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        ratio_BT = log_ratio_BT.clamp(max=MAX_LOG_WEIGHT).exp()
        x_BT = _by_sign(self.tau_positive, self.tau_negative, batch) * (ratio_BT - 1)
        return 4 * x_BT.sigmoid() * (-x_BT).sigmoid() * ratio_BT


class GeometricMean(Piece):
    """exp(mean_t c_t) of each response, c_t = log ratio, at most log_high where A > 0 and at least
    −log_low where A < 0: GMPO's factor in place of ρ (arXiv 2507.20673, Eq. 4). The bounds are
    those of clip=log_bounds, which drops the gradient of tokens beyond them; null for no bound."""

    formula = "geometric mean of the clipped {0}"

    log_low: NonNegativeFloat | None
    log_high: NonNegativeFloat | None

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        sign_B1 = batch.advantage_B[:, None]
        low = math.inf if self.log_low is None else self.log_low
        high = math.inf if self.log_high is None else self.log_high
        below_BT, above_BT = log_ratio_BT.clamp(max=high), log_ratio_BT.clamp(min=-low)
        cut_BT = below_BT.where(sign_B1 > 0, above_BT.where(sign_B1 < 0, log_ratio_BT))
        mean_B1 = batch.mean_B(batch.of_live_BT(cut_BT))[:, None]
        return mean_B1.clamp(max=MAX_LOG_WEIGHT).exp().expand_as(log_ratio_BT)


class GammaWeight(Piece):
    """w^k · exp(λ (1 − w)) of each response, w = Π_t ρ_t: 1 at w = 1, 0 at 0 and ∞ (VESPO, arXiv
    2602.10693). One pair (k, λ) where A ≥ 0, another where A < 0.
    """

    formula = (
        "w^k·exp(λ(1 − w)) [w = Π ρ, (k, λ) = ({power_positive:g}, {decay_positive:g}) where "
        "A ≥ 0, ({power_negative:g}, {decay_negative:g}) where A < 0]"
    )

    power_positive: PositiveFloat
    decay_positive: PositiveFloat
    power_negative: PositiveFloat
    decay_negative: PositiveFloat

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        log_w_B1 = batch.log_ratio_BT().sum(1, keepdim=True)
        positive_B1 = batch.advantage_B[:, None] >= 0
        power_B1 = log_w_B1.new_tensor(self.power_positive).where(positive_B1, self.power_negative)
        decay_B1 = log_w_B1.new_tensor(self.decay_positive).where(positive_B1, self.decay_negative)
        log_weight_B1 = power_B1 * log_w_B1 - decay_B1 * log_w_B1.expm1()
        return log_weight_B1.exp().expand_as(log_ratio_BT)


class PowerOfPositives(Piece):
    """min(ratio^power, cap) where A > 0, min(ratio, cap) elsewhere. Power 0 leaves positives as
    REINFORCE has them (UP, arXiv 2607.06987, Eq. 15); power −1 weights those up that the policy
    finds less likely than it did (ASPO, arXiv 2510.06062). Null for no cap.
    """

    power: float
    cap: Annotated[float, Field(ge=1)] | None

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        ceiling = MAX_LOG_WEIGHT if self.cap is None else math.log(self.cap)
        powered_BT = _by_sign(self.power, 1.0, batch) * log_ratio_BT
        return powered_BT.clamp(max=ceiling).exp()

    def describe(self, ratio: str) -> str:
        power = {0.0: "1", 1.0: ratio, -1.0: f"1/{ratio}"}.get(
            self.power, f"{ratio}^{self.power:g}"
        )
        positive, other = (
            factor if self.cap is None or factor == "1" else f"min({factor}, {self.cap:g})"
            for factor in (power, ratio)
        )
        return f"({positive} where A > 0, {other} elsewhere)"


class SoftRatio(Piece):
    """ρ (1 − sign(A) (ρ − 1)/epsilon): the gradient of ρ A − |A| (ρ − 1)²/(2 epsilon) (CFPO, arXiv
    2601.22801). It is 0 at the bound of a clip with the same epsilon, and negative beyond it.
    """

    formula = "ρ·(1 − sign(A)·(ρ − 1)/{epsilon:g})"

    epsilon: PositiveFloat

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        ratio_BT = batch.log_ratio_BT().clamp(max=MAX_LOG_WEIGHT).exp()
        moved_BT = self.moved(ratio_BT, batch)
        return ratio_BT * (1 - batch.advantage_B.sign()[:, None] * moved_BT / self.epsilon)

    def moved(self, ratio_BT: Tensor, batch: LossInput) -> Tensor:
        """How far a token is from the behavior policy; 0 at ρ = 1."""
        return ratio_BT - 1


class SoftVariation(SoftRatio):
    """ρ (1 − sign(A) (π_θ − π_behavior)/epsilon): the gradient of
    ρ A − |A| π_behavior (ρ − 1)²/(2 epsilon) (DRPO, arXiv 2606.09821, Eq. 8 and 9). With an epsilon
    below 1 it turns negative where a token's probability has moved by more than epsilon in the
    direction of A.
    """

    formula = "ρ·(1 − sign(A)·(π_θ − π_behavior)/{epsilon:g})"

    def moved(self, ratio_BT: Tensor, batch: LossInput) -> Tensor:
        behavior_BT = batch.of_live_BT(batch.logps["behavior"])
        return behavior_BT.exp() * super().moved(ratio_BT, batch)


class FutureWeight(ImportanceWeight):
    """The ratio times f = exp(Σ_{k≥t} γ^(k−t) log ρ_k), which is at least `floor` and at most `cap`
    (FIPO, arXiv 2603.19835): a token counts more if the rest of its response became more likely.

    half_life: tokens after which γ = 2^(−1/half_life) halves a change. safe_ratio: where A < 0 and
    ρ is above it, f is at most 1.
    """

    formula = (
        "{0}·f [f = exp(Σ_k≥t γ^(k−t) log ρ_k) in {floor:g} … {cap:g}, γ = 2^(−1/{half_life:g}); "
        "f ≤ 1 where A < 0 and ρ > {safe_ratio:g}]"
    )

    half_life: PositiveFloat
    floor: Annotated[float, Field(ge=0, le=1)]
    cap: Annotated[float, Field(ge=1, le=MAX_WEIGHT)]
    safe_ratio: PositiveFloat

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        own_BT = batch.log_ratio_BT()
        later_BT = discounted(own_BT, 2 ** (-1 / self.half_life)).clamp(max=math.log(self.cap))
        factor_BT = later_BT.exp().clamp(min=self.floor)
        risky_BT = (batch.advantage_B < 0)[:, None] & (own_BT > math.log(self.safe_ratio))
        factor_BT = factor_BT.clamp(max=1.0).where(risky_BT, factor_BT)
        return super().__call__(log_ratio_BT, batch) * factor_BT


def discounted(values_BT: Tensor, discount: float) -> Tensor:
    """Σ_{k≥t} discount^(k−t) values_k of each row, in log₂ T passes that double the distance."""
    reach = 1
    while reach < values_BT.shape[1]:
        further_BT = values_BT.new_zeros(values_BT.shape)
        further_BT[:, :-reach] = values_BT[:, reach:]
        values_BT = values_BT + discount**reach * further_BT
        reach *= 2
    return values_BT


def _by_sign(positive: float, other: float, batch: LossInput) -> Tensor:
    """One number where A > 0, another elsewhere; B x 1."""
    advantage_B1 = batch.advantage_B[:, None]
    return advantage_B1.new_tensor(positive).where(advantage_B1 > 0, other)
