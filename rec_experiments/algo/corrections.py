"""Corrections for log-probabilities that differ between sampler and trainer.

The two compute the same policy with different rounding. κ = π_behavior/π_sampler of a token is its
probability in the trainer's forward pass of the policy that drew it, divided by the probability
that the sampler reported. With a correction, ρ is relative to the trainer's probability, and κ
accounts for the rest.
"""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from rec_experiments.algo.clips import binary_kl, interval, written
from rec_experiments.algo.inputs import LossInput
from rec_experiments.algo.weights import MAX_LOG_WEIGHT
from rec_experiments.common.batch import Tensor
from rec_experiments.common.pieces import Needs, Piece

DIVERGENCES = ("k3", "binary_kl")  # 0 at κ = 1


class MismatchCorrection(Piece):
    """A weight computed from κ; 0 for a token or response whose measure of κ is outside a band.

    Special cases: truncated importance sampling (weight token), masked importance sampling (weight
    product, measure product), IcePop (weight and measure token), and verl's rollout_is and
    rollout_rs (rollout_corr_helper.py). verl also removes rejected tokens from the denominator;
    here they stay in it.

    weight: `one`, `token` for κ, or `product` for Π κ of the response (rollout_is null, token,
    sequence). cap: the largest weight; null for e^20.
    measure: `token` for κ, which rejects tokens; `product` for Π κ, `mean` for its geometric mean
    and `k3` for the mean of κ − 1 − log κ, which reject responses (rollout_rs token_k1, seq_sum_k1,
    seq_mean_k1, seq_mean_k3). verl's bounds of k1 are those of 1/κ. `binary_kl` rejects tokens by
    the larger of KL(π_behavior ‖ π_sampler) and KL(π_sampler ‖ π_behavior) of the token against all
    others (KPop, AReaL's rejection_sampling).
    low, high: the band, inclusive; null for no bound. A divergence has no lower bound.

    Raises ValueError for another name, cap < 1, or a band without κ = 1.
    """

    needs: ClassVar[Needs] = Needs(logps=frozenset({"sampler"}))
    weight: Literal["one", "token", "product"]
    cap: Annotated[float, Field(ge=1)] | None
    measure: Literal["token", "product", "mean", "k3", "binary_kl"]
    low: float | None
    high: float | None

    def __post_init__(self) -> None:
        of_equal = 0.0 if self.measure in DIVERGENCES else 1.0  # its value at κ = 1
        if self.low is not None and not 0 <= self.low <= of_equal:
            raise ValueError(f"low={self.low}: must be between 0 and {of_equal:g}, or null")
        if self.high is not None and self.high < of_equal:
            raise ValueError(f"high={self.high}: must be at least {of_equal:g}, or null")

    def __call__(self, batch: LossInput) -> Tensor | None:
        log_kappa_BT = batch.of_live_BT(batch.logps["behavior"] - batch.logps["sampler"])
        measure_BT = _measured(self.measure, log_kappa_BT, batch)
        inside_BT = measure_BT <= (math.inf if self.high is None else self._log(self.high))
        if self.low is not None:
            inside_BT = inside_BT & (measure_BT >= self._log(self.low))
        return self._weigh(log_kappa_BT).where(inside_BT, 0.0)

    def _weigh(self, log_kappa_BT: Tensor) -> Tensor:
        if self.weight == "one":
            return log_kappa_BT.new_ones(log_kappa_BT.shape)
        if self.weight == "product":
            log_kappa_BT = log_kappa_BT.sum(1, keepdim=True).expand_as(log_kappa_BT)
        ceiling = MAX_LOG_WEIGHT if self.cap is None else math.log(self.cap)
        return log_kappa_BT.clamp(max=ceiling).exp()

    def _log(self, bound: float) -> float:
        """A bound on the scale of `_measured`; −∞ for 0."""
        if self.measure in DIVERGENCES:
            return bound
        return math.log(bound) if bound > 0 else -math.inf

    def describe(self) -> str:
        weight = {"one": "", "token": "κ", "product": "Π κ"}[self.weight]
        if weight and self.cap is not None:
            weight = f"min({weight}, {self.cap:g})"
        measure = {
            "token": "κ",
            "product": "Π κ",
            "mean": "(Π κ)^(1/|y|)",
            "k3": "mean of κ − 1 − log κ",
            "binary_kl": "KL of the token against the rest, either way,",
        }[self.measure]
        bounds = interval(written(self.low), measure, written(self.high))
        band = "" if self.low is None and self.high is None else f"1({bounds})"
        return " · ".join(factor for factor in (weight, band) if factor)


def _measured(measure: str, log_kappa_BT: Tensor, batch: LossInput) -> Tensor:
    """log of κ, of Π κ or of the geometric mean of κ, or a divergence itself. B x T; only κ and
    binary_kl vary within a row."""
    if measure == "token":
        return log_kappa_BT
    if measure == "binary_kl":
        trainer_BT, sampler_BT = (
            batch.of_live_BT(batch.logps[role]) for role in ("behavior", "sampler")
        )
        return binary_kl(trainer_BT, sampler_BT).maximum(binary_kl(sampler_BT, trainer_BT))
    if measure == "k3":
        log_kappa_BT = log_kappa_BT.expm1() - log_kappa_BT
    found_B = log_kappa_BT.sum(1) if measure == "product" else batch.mean_B(log_kappa_BT)
    return found_B[:, None].expand_as(log_kappa_BT)
