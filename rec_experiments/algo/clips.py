"""Clipping as a mask: which tokens keep their gradient (Section 4.1 and Appendix B.3).

A mask sees log ρ, so that it is exact at ρ = 0 and never overflows. Bounds are inclusive, null
means unbounded. A token whose advantage is 0 has no gradient and counts as kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rec_experiments.types import LossInput, Piece

if TYPE_CHECKING:
    from torch import Tensor


class Clip(Protocol):
    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        """Boolean B x T: True where the token keeps its gradient. log_ratio_BT: of `ratio`."""

    def describe(self, ratio: str) -> str:
        """The interval of the ratio that is kept, for people."""


@dataclass(kw_only=True)
class Bounds(Piece):
    """The inner interval 1 − low ≤ ρ ≤ 1 + high, written (ε_low, ε_high) in the paper.

    Raises ValueError unless 0 ≤ low ≤ 1 and high ≥ 0.
    """

    low: float | None
    high: float | None

    def __post_init__(self) -> None:
        if self.low is not None and not 0 <= self.low <= 1:
            raise ValueError(f"low={self.low}: must be between 0 and 1, or null for no bound")
        if self.high is not None and not self.high >= 0:
            raise ValueError(f"high={self.high}: must be at least 0, or null for no bound")

    def above_floor(self, log_ratio_BT: Tensor) -> Tensor:
        return log_ratio_BT >= log_floor(self.low)

    def below_ceiling(self, log_ratio_BT: Tensor) -> Tensor:
        return log_ratio_BT <= log_ceiling(self.high)


@dataclass(kw_only=True)
class OneSide(Bounds):
    """M = 1(A > 0, ρ ≤ 1 + ε_high) + 1(A < 0, ρ ≥ 1 − ε_low), as in PPO and GRPO (Eq. 8)."""

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        sign_B1 = batch.advantage_B[:, None]
        return (
            (sign_B1 == 0)
            | ((sign_B1 > 0) & self.below_ceiling(log_ratio_BT))
            | ((sign_B1 < 0) & self.above_floor(log_ratio_BT))
        )

    def describe(self, ratio: str) -> str:
        kept = [
            f"{ratio} ≤ {1 + self.high:g} where A > 0" if self.high is not None else "",
            f"{ratio} ≥ {1 - self.low:g} where A < 0" if self.low is not None else "",
        ]
        bounds = " and ".join(part for part in kept if part)
        return f"one-side, keeps {bounds}" if bounds else "none, keeps every token"


@dataclass(kw_only=True)
class TwoSide(Bounds):
    """M̃ = 1(1 − ε_low ≤ ρ ≤ 1 + ε_high), whatever the sign of the advantage (Eq. 18)."""

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        inside_BT = self.above_floor(log_ratio_BT) & self.below_ceiling(log_ratio_BT)
        return inside_BT | (batch.advantage_B == 0)[:, None]

    def describe(self, ratio: str) -> str:
        if self.low is None and self.high is None:
            return "none, keeps every token"
        floor = f"{1 - self.low:g} ≤ " if self.low is not None else ""
        ceiling = f" ≤ {1 + self.high:g}" if self.high is not None else ""
        return f"two-side, keeps {floor}{ratio}{ceiling}"


@dataclass(kw_only=True)
class Ring(Bounds):
    """M̂ = M̃ + 1(A > 0, ρ ≤ 1 − ε'_low) + 1(A < 0, ρ ≥ 1 + ε'_high) (Eq. 19).

    Outer bounds equal to the inner ones give the one-side mask, unreachable ones (null) the
    two-side mask. Raises ValueError if an outer bound is tighter than its inner bound.
    """

    outer_low: float | None
    outer_high: float | None

    def __post_init__(self) -> None:
        super().__post_init__()
        for side in ("low", "high"):
            inner, outer = getattr(self, side), getattr(self, f"outer_{side}")
            if inner is not None and outer is not None and outer < inner:
                raise ValueError(
                    f"outer_{side}={outer}: must be at least {side}={inner}, or null for no ring"
                )

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        sign_B1 = batch.advantage_B[:, None]
        inside_BT = self.above_floor(log_ratio_BT) & self.below_ceiling(log_ratio_BT)
        far_below_BT = log_ratio_BT <= log_floor(self.outer_low)
        far_above_BT = log_ratio_BT >= log_ceiling(self.outer_high)
        return (
            inside_BT
            | (sign_B1 == 0)
            | ((sign_B1 > 0) & far_below_BT)
            | ((sign_B1 < 0) & far_above_BT)
        )

    def describe(self, ratio: str) -> str:
        inner = TwoSide(low=self.low, high=self.high).describe(ratio)
        if self.low is None and self.high is None:
            return inner
        outside = ""
        if self.outer_low is not None:
            outside += f", {ratio} ≤ {1 - self.outer_low:g} where A > 0"
        if self.outer_high is not None:
            outside += f", {ratio} ≥ {1 + self.outer_high:g} where A < 0"
        return inner.replace("two-side", "ring") + outside


def log_floor(low: float | None) -> float:
    """log(1 − low); −∞ for no bound."""
    return -math.inf if low is None or low == 1 else math.log1p(-low)


def log_ceiling(high: float | None) -> float:
    """log(1 + high); ∞ for no bound."""
    return math.inf if high is None else math.log1p(high)
