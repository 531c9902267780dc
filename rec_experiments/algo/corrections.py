"""Corrections for a sampler that differs from the trainer, token by token.

Two programs compute one policy and differ in rounding. κ = π_behavior/π_sampler of a token: the
probability that the trainer's forward pass gives it under the policy that drew it, over the one
that the sampler reported. With a correction, ρ is relative to the trainer's number, and κ corrects
the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from rec_experiments.algo.ranges import check_at_least, check_between, check_one_of
from rec_experiments.algo.weights import MAX_LOG_WEIGHT
from rec_experiments.types import LossInput, Needs, Piece

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = ("one", "token", "product")
MEASURES = ("token", "product", "mean", "k3")


class Correction(Protocol):
    def __call__(self, batch: LossInput) -> Tensor | None:
        """Factor on each token's gradient, B x T, without gradient; None for 1."""

    def describe(self) -> str:
        """The factor in the formula, empty for 1."""


@dataclass(kw_only=True)
class NoCorrection(Piece):
    """The sampler's log-probabilities are taken as they are, as in the paper."""

    def __call__(self, batch: LossInput) -> Tensor | None:
        return None


@dataclass(kw_only=True)
class MismatchCorrection(Piece):
    """A weight made of κ, 0 for a token or response whose measure of κ is outside a band.

    Special cases: truncated importance sampling (weight token), masked importance sampling (weight
    product, measure product), IcePop (weight and measure token), and verl's rollout_is and
    rollout_rs (rollout_corr_helper.py), which takes rejected tokens out of the denominator too;
    here they stay in it.

    weight: `one`, `token` for κ, or `product` for Π κ of the response (rollout_is null, token,
    sequence). cap: the largest weight; null for e^20.
    measure: `token` for κ, which rejects tokens; `product` for Π κ, `mean` for its geometric mean
    and `k3` for the mean of κ − 1 − log κ, which reject responses (rollout_rs token_k1, seq_sum_k1,
    seq_mean_k1, seq_mean_k3). verl's bounds of k1 are those of 1/κ.
    low, high: the band, bounds included; null for no bound. k3 has no lower one.

    Raises ValueError for another name, cap < 1, or a band without κ = 1.
    """

    needs: ClassVar[Needs] = Needs(logps=frozenset({"sampler"}))
    weight: str
    cap: float | None
    measure: str
    low: float | None
    high: float | None

    def __post_init__(self) -> None:
        check_one_of(WEIGHTS, self, "weight")
        check_one_of(MEASURES, self, "measure")
        check_at_least(1, self, "cap")
        of_equal = 0.0 if self.measure == "k3" else 1.0  # its value at κ = 1
        check_between(0, of_equal, self, "low")
        check_at_least(of_equal, self, "high")

    def __call__(self, batch: LossInput) -> Tensor | None:
        log_kappa_BT = log_mismatch(batch)
        measure_BT = _measured(self.measure, log_kappa_BT, batch.mask_BT)
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
        if self.measure == "k3":
            return bound
        return math.log(bound) if bound > 0 else -math.inf


def _measured(measure: str, log_kappa_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """log of κ, of Π κ or of its geometric mean; k3 itself. B x T, equal within a row unless κ."""
    if measure == "token":
        return log_kappa_BT
    if measure == "k3":
        log_kappa_BT = log_kappa_BT.expm1() - log_kappa_BT
    found_B1 = log_kappa_BT.sum(1, keepdim=True)
    if measure != "product":
        found_B1 = found_B1 / mask_BT.sum(1, keepdim=True).clamp(min=1)
    return found_B1.expand_as(log_kappa_BT)


def log_mismatch(batch: LossInput) -> Tensor:
    """log κ of each live token, 0 elsewhere."""
    difference_BT = batch.logps["behavior"] - batch.logps["sampler"]
    return difference_BT.where(batch.mask_BT, 0.0)
