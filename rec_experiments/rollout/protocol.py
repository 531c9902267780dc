"""What a choice of pipeline offers: where batches are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from rec_experiments.rollout.worker import LocalWorker, RolloutWorker, Weights


class Pipeline(Protocol):
    def check(self, device: torch.device, ranks: int) -> None:
        """Raise UserError if it does not go with the run's device."""

    def start(
        self,
        here: Callable[[], LocalWorker],
        elsewhere: Callable[[], LocalWorker],
        weights: Weights,
        ranks: int,
    ) -> RolloutWorker:
        """Start what draws. here, elsewhere: make a worker in this process, or in another.
        weights: the layout of all to come. ranks: processes that train."""

    def describe(self) -> str:
        """Where batches are drawn, for people."""
