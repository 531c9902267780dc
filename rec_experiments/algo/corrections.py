"""Correction for a sampler that differs from the trainer, token by token.

Two programs compute one policy and differ in rounding. κ = π_behavior/π_sampler of a token: what
the trainer's own forward pass gives it, under the policy that drew it, over the sampler's report.
With a correction, ρ is π_θ over the trainer's number, and κ carries the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from rec_experiments.types import LossInput, Needs, Piece

if TYPE_CHECKING:
    from torch import Tensor

BOTH = Needs(logps=frozenset({"sampler"}))


class Correction(Protocol):
    def __call__(self, batch: LossInput) -> Tensor | None:
        """Factor on each token's gradient, B x T, without gradient; None for 1."""

    def describe(self) -> str:
        """The factor in the formula, empty for 1."""


@dataclass(kw_only=True, slots=True)
class NoCorrection(Piece):
    """The sampler's log-probabilities are taken as they are, as in the paper."""

    def __call__(self, batch: LossInput) -> Tensor | None:
        return None

    def describe(self) -> str:
        return ""


@dataclass(kw_only=True, slots=True)
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


@dataclass(kw_only=True, slots=True)
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


@dataclass(kw_only=True, slots=True)
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


@dataclass(kw_only=True, slots=True)
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


def log_mismatch(batch: LossInput) -> Tensor:
    """log κ of each live token, 0 elsewhere."""
    difference_BT = batch.logps["behavior"] - batch.logps["sampler"]
    return difference_BT.where(batch.mask_BT, 0.0)


def _check_cap(cap: float) -> None:
    if not 1 <= cap < math.inf:
        raise ValueError(f"cap={cap}: must be at least 1, and finite")
