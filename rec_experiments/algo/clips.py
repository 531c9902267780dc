"""Clips that decide token by token which gradients to keep (Section 4.1 and Appendix B.3).

A clip maps log-ratios to a mask, so it is exact at ρ = 0 and never overflows. Bounds are inclusive;
null means no bound. What a clip returns for tokens whose advantage is 0 does not matter: they have
no gradient, and the loss counts them as kept.
"""

import math
from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeFloat

from rec_experiments.algo.inputs import LossInput
from rec_experiments.common.batch import Tensor
from rec_experiments.common.pieces import Needs, Piece, Share


class RatioBounds(Piece):
    """1 − low ≤ ρ ≤ 1 + high, written (ε_low, ε_high) in the paper."""

    low: Share | None
    high: NonNegativeFloat | None


class OneSide(RatioBounds):
    """M = 1(A > 0, ρ ≤ 1 + high) + 1(A < 0, ρ ≥ 1 − low), as in PPO and GRPO (Eq. 8)."""

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return one_side(log_ratio_BT, batch, log_floor(self.low), log_ceiling(self.high))

    def describe(self, ratio: str) -> str:
        return f"one-side, keeps {where(below(self.low), ratio, above(self.high))}"


class TwoSide(RatioBounds):
    """M̃ = 1(1 − low ≤ ρ ≤ 1 + high), whatever the sign of the advantage (Eq. 18)."""

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return two_side(log_ratio_BT, log_floor(self.low), log_ceiling(self.high))

    def describe(self, ratio: str) -> str:
        return f"two-side, keeps {interval(below(self.low), ratio, above(self.high))}"


class Ring(RatioBounds):
    """M̂ = M̃ + 1(A > 0, ρ ≤ 1 − outer_low) + 1(A < 0, ρ ≥ 1 + outer_high) (Eq. 19).

    Outer bounds equal to the inner ones give the one-side mask, outer bounds of null the two-side
    mask. Raises ValueError if an outer bound is tighter than its inner bound.
    """

    outer_low: float | None
    outer_high: float | None

    def __post_init__(self) -> None:
        for side in ("low", "high"):
            inner, outer = getattr(self, side), getattr(self, f"outer_{side}")
            if inner is not None and outer is not None and outer < inner:
                raise ValueError(
                    f"outer_{side}={outer}: must be at least {side}={inner}, or null for no ring"
                )

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        sign_B1 = batch.advantage_B[:, None]
        far_below_BT = log_ratio_BT <= log_floor(self.outer_low)
        far_above_BT = log_ratio_BT >= log_ceiling(self.outer_high)
        return (
            two_side(log_ratio_BT, log_floor(self.low), log_ceiling(self.high))
            | ((sign_B1 > 0) & far_below_BT)
            | ((sign_B1 < 0) & far_above_BT)
        )

    def describe(self, ratio: str) -> str:
        kept = interval(below(self.low), ratio, above(self.high))
        if self.outer_low is not None:
            kept += f", {ratio} ≤ {below(self.outer_low)} where A > 0"
        if self.outer_high is not None:
            kept += f", {ratio} ≥ {above(self.outer_high)} where A < 0"
        return f"ring, keeps {kept}"


class Quadrants(RatioBounds):
    """The one-side mask that also drops what pulls the policy back: successes that have become
    unlikely (A > 0, ρ < 1 − fallen) and failures that have become likely (A < 0, ρ > 1 + risen).

    Its bounds act on tokens with rarest ≤ π_behavior < commonest; all others are kept. With
    fallen = low and risen = high on all tokens it is the two-side mask.
    """

    fallen: Share | None
    risen: NonNegativeFloat | None
    rarest: Share
    commonest: Annotated[float, Field(gt=0)] | None

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        sign_B1 = batch.advantage_B[:, None]
        behavior_BT = batch.of_live_BT(batch.logps["behavior"]).exp()
        exempt_BT = (behavior_BT < self.rarest) | (behavior_BT >= _bound(self.commonest))
        successes_BT = two_side(log_ratio_BT, log_floor(self.fallen), log_ceiling(self.high))
        failures_BT = two_side(log_ratio_BT, log_floor(self.low), log_ceiling(self.risen))
        return exempt_BT | successes_BT.where(sign_B1 > 0, failures_BT)

    def describe(self, ratio: str) -> str:
        successes = interval(below(self.fallen), ratio, above(self.high))
        failures = interval(below(self.low), ratio, above(self.risen))
        kept = f"keeps {successes} where A > 0 and {failures} where A < 0"
        if self.rarest == 0 and self.commonest is None:
            return kept
        less = "" if self.commonest is None else f" < {self.commonest:g}"
        return f"{kept}, if {self.rarest:g} ≤ π_behavior{less}"


class Dual(OneSide):
    """The one-side mask without the tokens with A < 0 and ρ > ceiling: their surrogate is at
    least ceiling · A, so that no single token dominates the step (arXiv 1912.09729).
    """

    ceiling: Annotated[float, Field(gt=1)]

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        beyond_BT = log_ratio_BT > math.log(self.ceiling)
        return super().__call__(log_ratio_BT, batch) & ~(
            beyond_BT & (batch.advantage_B < 0)[:, None]
        )

    def describe(self, ratio: str) -> str:
        return f"{super().describe(ratio)}; drops {ratio} > {self.ceiling:g} where A < 0"


class LogBounds(Piece):
    """The one-side mask with bounds on log ρ: log ρ ≤ log_high where A > 0, log ρ ≥ −log_low where
    A < 0 (GMPO, arXiv 2507.20673)."""

    log_low: NonNegativeFloat | None
    log_high: NonNegativeFloat | None

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return one_side(log_ratio_BT, batch, -_bound(self.log_low), _bound(self.log_high))

    def describe(self, ratio: str) -> str:
        low, high = written(self.log_low, "−"), written(self.log_high)
        return f"one-side, keeps {where(low, f'log {ratio}', high)}"


class Reciprocal(Piece):
    """1/(1 + epsilon) ≤ ρ ≤ 1 + epsilon, whatever the sign of the advantage (sPPO, arXiv
    2108.05828)."""

    epsilon: NonNegativeFloat

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return two_side(log_ratio_BT, -math.log1p(self.epsilon), math.log1p(self.epsilon))

    def describe(self, ratio: str) -> str:
        return f"two-side, keeps {1 / (1 + self.epsilon):g} ≤ {ratio} ≤ {1 + self.epsilon:g}"


class AroundProximal(RatioBounds):
    """The one-side mask around ρ' = π_prox/π_behavior: A > 0 keeps ρ ≤ ρ' + high, A < 0 keeps
    ρ ≥ max(ρ' − low, 0) (arXiv 2505.22257, Eq. 6, with π_k as the proximal policy; Mix-PPG, arXiv
    2507.06892). With ρ' = 1 it is the one-side mask."""

    needs: ClassVar[Needs] = Needs(logps=frozenset({"proximal"}))

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        proximal_BT = batch.logps["proximal"] - batch.logps["behavior"]
        moved_BT = batch.of_live_BT(proximal_BT).expm1()  # ρ' − 1
        floor = -math.inf if self.low is None else (moved_BT - self.low).clamp(min=-1.0).log1p()
        ceiling = math.inf if self.high is None else (moved_BT + self.high).log1p()
        return one_side(log_ratio_BT, batch, floor, ceiling)

    def describe(self, ratio: str) -> str:
        kept = where(written(self.low, "ρ' − "), ratio, written(self.high, "ρ' + "))
        return f"one-side, keeps {kept} [ρ' = π_prox/π_behavior]"


class Divergence(Piece):
    """Drops a token if its probability is too far from the behavior policy's and the gradient would
    move it further: A > 0, π_θ > π_behavior and a distance above delta_high, or A < 0,
    π_θ < π_behavior and a distance above delta_low (DPPO, arXiv 2602.04879). The distance is
    between two Bernoulli distributions: this token or any other."""

    measure: ClassVar[str]  # the distance, as a formula writes it
    delta_low: NonNegativeFloat | None
    delta_high: NonNegativeFloat | None

    def distance(self, batch: LossInput) -> Tensor:
        """Between π_behavior and π_θ of each live token; B x T, at least 0, without gradient."""
        raise NotImplementedError

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        sign_B1, moved_BT = batch.advantage_B[:, None], batch.log_ratio_BT()
        distance_BT = self.distance(batch)
        above_BT = (sign_B1 > 0) & (moved_BT > 0) & ~(distance_BT <= _bound(self.delta_high))
        below_BT = (sign_B1 < 0) & (moved_BT < 0) & ~(distance_BT <= _bound(self.delta_low))
        return ~(above_BT | below_BT)

    def describe(self, ratio: str) -> str:
        up, down = written(self.delta_high) or "∞", written(self.delta_low) or "∞"
        return f"drops {self.measure} > {up} upwards where A > 0, > {down} downwards where A < 0"


class TotalVariation(Divergence):
    """|π_θ − π_behavior| of the token (DPPO-Binary-TV)."""

    measure = "|π_θ − π_behavior|"

    def distance(self, batch: LossInput) -> Tensor:
        return total_variation(batch)


class BinaryKl(Divergence):
    """p log(p/q) + (1 − p) log((1 − p)/(1 − q)), p = π_behavior and q = π_θ of the token
    (DPPO-Binary-KL)."""

    measure = "KL(π_behavior ‖ π_θ) of token against rest"

    def distance(self, batch: LossInput) -> Tensor:
        policies = batch.logps["behavior"], batch.logp_BT.detach()
        return binary_kl(*map(batch.of_live_BT, policies))


class TwoSideVariation(Piece):
    """|π_θ − π_behavior| ≤ delta of the token, whatever the sign of the advantage (IPO, prime-rl's
    ipo_loss_fn)."""

    delta: NonNegativeFloat | None

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return total_variation(batch) <= _bound(self.delta)

    def describe(self, ratio: str) -> str:
        return f"two-side, keeps |π_θ − π_behavior| ≤ {written(self.delta) or '∞'}"


class Isometric(Piece):
    """The one-side mask with wider bounds for rarer tokens: A > 0 keeps
    ρ ≤ min(1 + √(delta_high/π_behavior), ceiling), A < 0 keeps
    ρ ≥ max(1 − √(delta_low/π_behavior), floor) (RIPO, arXiv 2607.10169).
    """

    delta_low: NonNegativeFloat
    delta_high: NonNegativeFloat
    floor: Share
    ceiling: Annotated[float, Field(ge=1)] | None

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        behavior_BT = batch.of_live_BT(batch.logps["behavior"])
        rarity_BT = (-behavior_BT / 2).exp()  # 1/√π_behavior
        floor_BT = (1 - math.sqrt(self.delta_low) * rarity_BT).clamp(min=self.floor)
        ceiling_BT = 1 + math.sqrt(self.delta_high) * rarity_BT
        ceiling_BT = ceiling_BT.clamp(max=_bound(self.ceiling))
        return one_side(log_ratio_BT, batch, floor_BT.log(), ceiling_BT.log())

    def describe(self, ratio: str) -> str:
        low = f"max(1 − √({self.delta_low:g}/π_behavior), {self.floor:g})"
        high = f"min(1 + √({self.delta_high:g}/π_behavior), {written(self.ceiling) or '∞'})"
        return f"one-side, keeps {where(low, ratio, high)}"


def outward(log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
    """Live tokens that a one-side clip could drop, because their gradient moves them further from
    the old policy: A > 0 and ρ > 1, or A < 0 and ρ < 1."""
    return (log_ratio_BT * batch.advantage_B[:, None] > 0) & batch.mask_BT


def total_variation(batch: LossInput) -> Tensor:
    """|π_θ − π_behavior| of each live token, 0 elsewhere; B x T, without gradient."""
    policies = batch.logp_BT.detach(), batch.logps["behavior"]
    logp_BT, behavior_BT = map(batch.of_live_BT, policies)
    return (logp_BT.exp() - behavior_BT.exp()).abs()


def binary_kl(p_BT: Tensor, q_BT: Tensor) -> Tensor:
    """KL(p ‖ q) of a token against all others, from its log-probabilities under p and q."""
    p_BT, q_BT = p_BT.clamp(max=0.0), q_BT.clamp(max=0.0)
    rest_BT = -p_BT.expm1()
    of_rest_BT = rest_BT * (rest_BT.log() - (-q_BT.expm1()).log())
    of_token_BT = p_BT.exp() * (p_BT - q_BT)
    return of_token_BT + of_rest_BT.where(rest_BT > 0, 0.0)


def one_side(
    log_ratio_BT: Tensor, batch: LossInput, floor: Tensor | float, ceiling: Tensor | float
) -> Tensor:
    """log ρ ≤ ceiling unless A ≤ 0, and log ρ ≥ floor unless A ≥ 0."""
    sign_B1 = batch.advantage_B[:, None]
    return ((sign_B1 <= 0) | (log_ratio_BT <= ceiling)) & ((sign_B1 >= 0) | (log_ratio_BT >= floor))


def two_side(log_ratio_BT: Tensor, floor: float, ceiling: float) -> Tensor:
    """floor ≤ log ρ ≤ ceiling."""
    return (log_ratio_BT >= floor) & (log_ratio_BT <= ceiling)


def log_floor(low: float | None) -> float:
    """log(1 − low); −∞ for no bound."""
    return -math.inf if low is None or low == 1 else math.log1p(-low)


def log_ceiling(high: float | None) -> float:
    """log(1 + high); ∞ for no bound."""
    return math.inf if high is None else math.log1p(high)


def _bound(bound: float | None) -> float:
    return math.inf if bound is None else bound


# In the signs of a formula: a bound of None is empty ---------------------------------------------

# The tokens of `outward`; {0} is the ratio.
OUTWARD = "the tokens with A > 0 and {0} > 1, or A < 0 and {0} < 1,"


def where(floor: str, ratio: str, ceiling: str) -> str:
    """Bounds that each hold for one sign of A."""
    bounds = [
        f"{ratio} ≤ {ceiling} where A > 0" if ceiling else "",
        f"{ratio} ≥ {floor} where A < 0" if floor else "",
    ]
    return " and ".join(bound for bound in bounds if bound) or "every token"


def interval(floor: str, middle: str, ceiling: str) -> str:
    """Bounds that hold whatever the sign of A."""
    if not floor and not ceiling:
        return "every token"
    return f"{floor} ≤ {middle}".removeprefix(" ≤ ") + f" ≤ {ceiling}".removesuffix(" ≤ ")


def written(value: float | None, sign: str = "") -> str:
    """A number behind a sign."""
    return "" if value is None else f"{sign}{value:g}"


def below(low: float | None) -> str:
    """1 − low."""
    return "" if low is None else f"{1 - low:g}"


def above(high: float | None) -> str:
    """1 + high."""
    return "" if high is None else f"{1 + high:g}"
