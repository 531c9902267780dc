"""Importance weight of each token: the factor ρ of the IS variants, or 1 (Section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rec_experiments.types import LossInput, Piece

if TYPE_CHECKING:
    from torch import Tensor

# exp(20) is beyond any weight a step survives, and its products stay finite in float32.
MAX_LOG_WEIGHT = 20.0


class Weight(Protocol):
    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        """Non-negative B x T, without gradient. log_ratio_BT: what the `ratio` piece gave."""

    def describe(self, ratio: str) -> str:
        """The factor in the formula, empty for 1."""


@dataclass(kw_only=True, slots=True)
class NoWeight(Piece):
    """1 for every token (NoIS)."""

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return log_ratio_BT.new_ones(log_ratio_BT.shape)

    def describe(self, ratio: str) -> str:
        return ""


@dataclass(kw_only=True, slots=True)
class ImportanceWeight(Piece):
    """The ratio that the `ratio` piece gives: ρ = π_θ / π_old of each token (IS)."""

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return log_ratio_BT.clamp(max=MAX_LOG_WEIGHT).exp()

    def describe(self, ratio: str) -> str:
        return f" · {ratio}"
