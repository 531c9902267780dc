"""The interface of a pipeline choice in the configuration."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

    from rec_experiments.rollout.worker import LocalWorker, RolloutWorker, Weights


@runtime_checkable
class Pipeline(Protocol):
    def check(self, device: torch.device, ranks: int) -> None:
        """Raise UserError if the pipeline cannot be used on the run's device."""

    def start(
        self,
        here: Callable[[], LocalWorker],
        elsewhere: Callable[[], LocalWorker],
        weights: Weights,
        ranks: int,
        versions: int,
    ) -> RolloutWorker:
        """Start a worker. here, elsewhere: make one in this process, or in another process.
        weights: their layout. ranks: number of training processes. versions: the most that one draw
        is made from."""

    def describe(self) -> str:
        """A one-line description."""
