"""Correction for a sampler that differs from the trainer, token by token.

Two programs compute one policy and differ in rounding. κ = π_behavior/π_sampler of a token: what
the trainer's own forward pass gives it, under the policy that drew it, over the sampler's report.
With a correction, ρ is π_θ over the trainer's number, and κ carries the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from rec_experiments.algo.weights import MAX_LOG_WEIGHT
from rec_experiments.types import LossInput, Needs, Piece

if TYPE_CHECKING:
    from torch import Tensor

BOTH = Needs(logps=frozenset({"sampler"}))
# Names of RejectionCorrection, as the formula writes them.
WEIGHTS = {"one": "", "token": "κ", "product": "Π κ"}
MEASURES = {
    "token": "κ",
    "product": "Π κ",
    "mean": "(Π κ)^(1/|y|)",
    "k3": "mean of κ − 1 − log κ",
}


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

    def describe(self) -> str:
        return ""


@dataclass(kw_only=True)
class TruncatedCorrection(Piece):
    """min(κ, cap) of each token (truncated importance sampling). Raises ValueError for cap < 1."""

    needs: ClassVar[Needs] = BOTH
    cap: float

    def __post_init__(self) -> None:
        _check_cap(self.cap)

    def __call__(self, batch: LossInput) -> Tensor | None:
        return log_mismatch(batch).clamp(max=math.log(self.cap)).exp()

    def describe(self) -> str:
        return f" · min(κ, {self.cap:g})"


@dataclass(kw_only=True)
class MaskedCorrection(Piece):
    """A sequence counts only if Π_t κ_t ≤ cap (masked importance sampling); its weight is 1.

    Its tokens stay in the denominator. Raises ValueError for cap < 1.
    """

    needs: ClassVar[Needs] = BOTH
    cap: float

    def __post_init__(self) -> None:
        _check_cap(self.cap)

    def __call__(self, batch: LossInput) -> Tensor | None:
        log_mismatch_BT = log_mismatch(batch)
        kept_B1 = log_mismatch_BT.sum(1, keepdim=True) <= math.log(self.cap)
        return kept_B1.to(log_mismatch_BT.dtype).expand_as(log_mismatch_BT)

    def describe(self) -> str:
        return f" · 1(Π κ ≤ {self.cap:g})"


@dataclass(kw_only=True)
class SequenceCorrection(Piece):
    """Π_t κ_t on every token of a sequence where it is at most cap, 0 where it is more: the masked
    importance sampling of sequences. Raises ValueError for cap < 1."""

    needs: ClassVar[Needs] = BOTH
    cap: float

    def __post_init__(self) -> None:
        _check_cap(self.cap)

    def __call__(self, batch: LossInput) -> Tensor | None:
        log_mismatch_BT = log_mismatch(batch)
        product_B1 = log_mismatch_BT.sum(1, keepdim=True)
        weight_B1 = product_B1.exp().where(product_B1 <= math.log(self.cap), 0.0)
        return weight_B1.expand_as(log_mismatch_BT)

    def describe(self) -> str:
        return f" · Π κ·1(Π κ ≤ {self.cap:g})"


@dataclass(kw_only=True)
class BandCorrection(Piece):
    """κ · 1(low ≤ κ ≤ high) of each token (IcePop). Raises ValueError unless 0 ≤ low ≤ 1 ≤ high."""

    needs: ClassVar[Needs] = BOTH
    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= 1 <= self.high < math.inf:
            raise ValueError(
                f"low={self.low}, high={self.high}: must be low ≤ 1 ≤ high, low at least 0"
            )

    def __call__(self, batch: LossInput) -> Tensor | None:
        ratio_BT = log_mismatch(batch).exp()
        return ratio_BT.where((ratio_BT >= self.low) & (ratio_BT <= self.high), 0.0)

    def describe(self) -> str:
        return f" · κ·1({self.low:g} ≤ κ ≤ {self.high:g})"


@dataclass(kw_only=True)
class RejectionCorrection(Piece):
    """A weight of κ, and a measure of κ that must lie in a band: verl's rollout_is and rollout_rs,
    each with a level of its own (rollout_corr_helper.py). What is rejected stays in the
    denominator; verl takes it out.

    weight: `one`, `token` for κ, or `product` for Π κ of the response (rollout_is null, token,
    sequence). cap: the weight is at most that; null for e^20.
    measure: `token` for κ, which rejects tokens; `product` for Π κ, `mean` for its geometric mean
    and `k3` for the mean of κ − 1 − log κ, which reject responses (rollout_rs token_k1, seq_sum_k1,
    seq_mean_k1, seq_mean_k3). verl's bounds of k1 are those of 1/κ.
    low, high: the band, bounds inclusive; null for no bound. k3 has no lower one.

    Raises ValueError for another name, cap < 1, or a band without κ = 1.
    """

    needs: ClassVar[Needs] = BOTH
    weight: str
    cap: float | None
    measure: str
    low: float | None
    high: float | None

    def __post_init__(self) -> None:
        _check_name("weight", self.weight, WEIGHTS)
        _check_name("measure", self.measure, MEASURES)
        if self.cap is not None:
            _check_cap(self.cap)
        of_equal = 0.0 if self.measure == "k3" else 1.0  # its value at κ = 1
        if self.low is not None and not 0 <= self.low <= of_equal:
            raise ValueError(f"low={self.low}: must be 0 to {of_equal:g}, or null for no bound")
        if self.high is not None and not of_equal <= self.high < math.inf:
            raise ValueError(f"high={self.high}: must be at least {of_equal:g} and finite, or null")

    def __call__(self, batch: LossInput) -> Tensor | None:
        log_mismatch_BT = log_mismatch(batch)
        measure_BT = _measured(self.measure, log_mismatch_BT, batch.mask_BT)
        inside_BT = measure_BT <= (math.inf if self.high is None else self._log(self.high))
        if self.low is not None:
            inside_BT = inside_BT & (measure_BT >= self._log(self.low))
        return self._weigh(log_mismatch_BT).where(inside_BT, 0.0)

    def _weigh(self, log_mismatch_BT: Tensor) -> Tensor:
        if self.weight == "one":
            return log_mismatch_BT.new_ones(log_mismatch_BT.shape)
        if self.weight == "product":
            log_mismatch_BT = log_mismatch_BT.sum(1, keepdim=True).expand_as(log_mismatch_BT)
        ceiling = MAX_LOG_WEIGHT if self.cap is None else math.log(self.cap)
        return log_mismatch_BT.clamp(max=ceiling).exp()

    def _log(self, bound: float) -> float:
        """Of a bound as `_measured` has it; that of 0 is −∞."""
        if self.measure == "k3":
            return bound
        return math.log(bound) if bound > 0 else -math.inf

    def describe(self) -> str:
        weight = WEIGHTS[self.weight]
        if weight and self.cap is not None:
            weight = f" · min({weight}, {self.cap:g})"
        elif weight:
            weight = f" · {weight}"
        floor = f"{self.low:g} ≤ " if self.low is not None else ""
        ceiling = f" ≤ {self.high:g}" if self.high is not None else ""
        band = f" · 1({floor}{MEASURES[self.measure]}{ceiling})" if floor or ceiling else ""
        return f"{weight}{band}"


def _measured(measure: str, log_mismatch_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """log of κ, Π κ or its geometric mean; k3 itself. Of all tokens of a row where it is one."""
    if measure == "token":
        return log_mismatch_BT
    if measure == "k3":
        log_mismatch_BT = log_mismatch_BT.expm1() - log_mismatch_BT
    found_B1 = log_mismatch_BT.sum(1, keepdim=True)
    if measure != "product":
        found_B1 = found_B1 / mask_BT.sum(1, keepdim=True).clamp(min=1)
    return found_B1.expand_as(log_mismatch_BT)


def log_mismatch(batch: LossInput) -> Tensor:
    """log κ of each live token, 0 elsewhere."""
    difference_BT = batch.logps["behavior"] - batch.logps["sampler"]
    return difference_BT.where(batch.mask_BT, 0.0)


def _check_name(name: str, value: str, allowed: dict[str, str]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value}: must be one of {', '.join(allowed)}")


def _check_cap(cap: float) -> None:
    if not 1 <= cap < math.inf:
        raise ValueError(f"cap={cap}: must be at least 1, and finite")
