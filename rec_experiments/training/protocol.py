"""What a choice of optimizer offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class Optimizer(Protocol):
    def build(self, model: nn.Module) -> torch.optim.Optimizer: ...

    def rate(self, step: int) -> float:
        """Learning rate of gradient step number `step`, counted from 0."""

    def step(self, optimizer: torch.optim.Optimizer, model: nn.Module, step: int) -> float | Tensor:
        """Take it and clear the gradient. Returns the gradient's norm before clipping."""

    def describe(self) -> str:
        """For people."""
