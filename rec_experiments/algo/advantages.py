"""Advantage of each response within its group. Inputs and outputs are float64, B rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rec_experiments.algo.groups import center, group_size, group_sum
from rec_experiments.types import Piece

if TYPE_CHECKING:
    from torch import Tensor


class Advantage(Protocol):
    def __call__(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        """Advantage of each response; all rows of a group are present."""

    def describe(self) -> str:
        """The formula, for people."""


@dataclass(kw_only=True, slots=True)
class GroupMean(Piece):
    """r_i − (r̄ + shift). Eq. 1 with shift 0; AsymRE (Section 4.2) with shift −τ."""

    shift: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.shift):
            raise ValueError(f"shift={self.shift}: must be finite")

    def __call__(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        return center(rewards_B, groups_B) - self.shift

    def describe(self) -> str:
        return f"(r − (r̄ {self.shift:+g}))" if self.shift else "(r − r̄)"


@dataclass(kw_only=True, slots=True)
class GroupStandard(Piece):
    """(r_i − r̄) / (σ_r + epsilon), the advantage of GRPO (Eq. 8).

    ddof: 0 for the population's standard deviation, 1 for the sample's. A group of one, or of
    equal rewards, has advantage 0. Raises ValueError for another ddof or a negative epsilon.
    """

    ddof: int
    epsilon: float

    def __post_init__(self) -> None:
        if self.ddof not in (0, 1):
            raise ValueError(f"ddof={self.ddof}: must be 0 (population) or 1 (sample)")
        if not 0 <= self.epsilon < math.inf:
            raise ValueError(f"epsilon={self.epsilon}: must be at least 0, and finite")

    def __call__(self, rewards_B: Tensor, groups_B: Tensor) -> Tensor:
        centered_B = center(rewards_B, groups_B)
        degrees_B = (group_size(groups_B) - self.ddof).clamp(min=1)
        deviation_B = (group_sum(centered_B**2, groups_B) / degrees_B).sqrt()
        return centered_B / (deviation_B + self.epsilon).clamp(min=1e-300)

    def describe(self) -> str:
        return "(r − r̄)/σ_r"
