"""Importance weight of each token: the factor ρ of the IS variants, or 1 (Section 4.1)."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rec_experiments.types import Piece

# exp(20) is beyond any weight a step survives, and its products stay finite in float32.
MAX_LOG_WEIGHT = 20.0


def mismatch_weight(gap_BT: Tensor, cap: float) -> Tensor:
    """min(π_trainer / π_sampler, cap) of each token: truncated importance weighting between the two
    programs that compute one policy. gap_BT: log π_trainer − log π_sampler."""
    return gap_BT.clamp(max=math.log(cap)).exp()


class Weight(Protocol):
    def __call__(self, log_ratio_BT: Tensor, advantage_B: Tensor, mask_BT: Tensor) -> Tensor:
        """Non-negative B x T, without gradient."""

    def describe(self) -> str:
        """The factor in the formula, empty for 1."""


@dataclass(kw_only=True, slots=True)
class NoWeight(Piece):
    """1 for every token (NoIS)."""

    def __call__(self, log_ratio_BT: Tensor, advantage_B: Tensor, mask_BT: Tensor) -> Tensor:
        return torch.ones_like(log_ratio_BT)

    def describe(self) -> str:
        return ""


@dataclass(kw_only=True, slots=True)
class ImportanceWeight(Piece):
    """ρ = π_θ / π_old of each token (IS)."""

    def __call__(self, log_ratio_BT: Tensor, advantage_B: Tensor, mask_BT: Tensor) -> Tensor:
        return log_ratio_BT.clamp(max=MAX_LOG_WEIGHT).exp()

    def describe(self) -> str:
        return " · ρ"
