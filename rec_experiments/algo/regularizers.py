"""Extra loss added to the surrogate, outside its mask (Section 4.2). B x T per-token terms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rec_experiments.types import LossInput, Piece

if TYPE_CHECKING:
    from torch import Tensor


class Regularizer(Protocol):
    def __call__(self, batch: LossInput) -> Tensor | None:
        """Loss of each token, B x T, differentiable; None when there is nothing to add."""

    def describe(self) -> str:
        """The term in the formula, empty for none."""


@dataclass(kw_only=True, slots=True)
class NoRegularizer(Piece):
    """Nothing to add."""

    def __call__(self, batch: LossInput) -> Tensor | None:
        return None

    def describe(self) -> str:
        return ""


@dataclass(kw_only=True, slots=True)
class SequenceSquare(Piece):
    """τ/2 (log π_θ(y|x) − log π_old(y|x))² of each sequence: OPMD as the paper writes it.

    A sequence's term is spread evenly over its live tokens, so that any aggregation that sums
    tokens counts it once, on the scale of the sequence's surrogate. Raises ValueError for τ < 0.
    """

    tau: float

    def __post_init__(self) -> None:
        _check_tau(self.tau)

    def __call__(self, batch: LossInput) -> Tensor | None:
        mask_BT = batch.mask_BT
        drift_B = _live_difference(batch).sum(1)
        length_B = mask_BT.sum(1).clamp(min=1)
        return (self.tau / 2 * drift_B**2 / length_B)[:, None] * mask_BT

    def describe(self) -> str:
        return f"{self.tau:g}/2 · (log π_θ(y) − log π_old(y))² per sequence"


@dataclass(kw_only=True, slots=True)
class TokenSquare(Piece):
    """τ (log π_θ − log π_old)² of each token: OPMD as the paper's framework computes it.

    Raises ValueError for τ < 0.
    """

    tau: float

    def __post_init__(self) -> None:
        _check_tau(self.tau)

    def __call__(self, batch: LossInput) -> Tensor | None:
        return self.tau * _live_difference(batch) ** 2

    def describe(self) -> str:
        return f"{self.tau:g} · (log π_θ − log π_old)² per token"


def _live_difference(batch: LossInput) -> Tensor:
    difference_BT = batch.logp_BT - batch.logps["behavior"]
    return difference_BT.where(batch.mask_BT, 0.0)


def _check_tau(tau: float) -> None:
    if not 0 <= tau < math.inf:
        raise ValueError(f"tau={tau}: must be at least 0, and finite")
