"""Where rollouts are drawn: in the training process, or in another process at the same time.

Both give the same bits, because a batch depends only on its number, the seed and the weights that
the schedule names. On a GPU this needs deterministic=true and the native sampler
(docs/operations.md).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Protocol, runtime_checkable

from pydantic import Field, PositiveFloat, PositiveInt

from rec_experiments.common.errors import UserError
from rec_experiments.common.pieces import Piece

if TYPE_CHECKING:
    import torch

    from rec_experiments.rollout.remote import Build
    from rec_experiments.rollout.worker import RolloutWorker, Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSetup:
    """What a pipeline starts a worker from.

    here, elsewhere: make one in this process, or in another process. weights: their layout. dtype:
    in which another process gets them, None for their own. device: the run's. ranks: the training
    processes on this machine whose draws need a device of their own. versions: the most that one
    draw is made from. draws: False on a rank for which rank 0 draws.
    """

    here: Build
    elsewhere: Build
    weights: Weights
    dtype: torch.dtype | None
    device: torch.device
    ranks: int
    versions: int
    draws: bool


@runtime_checkable
class Pipeline(Protocol):
    def check(self, device: torch.device, ranks: int) -> None:
        """Raise UserError if the pipeline cannot be used on the run's device. ranks: as in
        `WorkerSetup`."""

    def start(self, setup: WorkerSetup) -> RolloutWorker:
        """Start a worker. Raises UserError for what the user can fix, in either process."""

    def describe(self) -> str:
        """A one-line description."""


class Sequential(Piece):
    """Draws in the training process, between updates."""

    formula = "in the training process, alternating with training"

    def check(self, device: torch.device, ranks: int) -> None:
        """Any device is supported."""

    def start(self, setup: WorkerSetup) -> RolloutWorker:
        return setup.here()


class Overlap(Piece):
    """Draws in another process while this one trains.

    device: auto or cuda:N. max_ahead: the most batches drawn ahead of training; None for as many as
    the schedule allows. timeout: seconds that the start or an awaited batch may take.
    """

    device: Annotated[str, Field(pattern=r"^(auto|cuda:\d+)$")]
    max_ahead: PositiveInt | None
    timeout: PositiveFloat

    def check(self, device: torch.device, ranks: int) -> None:
        self._variables(device, ranks)

    def start(self, setup: WorkerSetup) -> RolloutWorker:
        from rec_experiments.rollout.remote import Bystander, RemoteWorker

        if not setup.draws:
            return Bystander(self.max_ahead, setup.versions)
        return RemoteWorker(
            setup.elsewhere,
            setup.weights,
            ahead=self.max_ahead,
            timeout=self.timeout,
            environment=self._variables(setup.device, setup.ranks),
            versions=setup.versions,
            dtype=setup.dtype,
        )

    def _variables(self, device: torch.device, ranks: int) -> dict[str, str]:
        """The variables with which the other process sees only the device to draw on."""
        import torch

        number = device_number(self.device, device, torch.cuda.device_count(), ranks)
        return {} if number is None else {"CUDA_VISIBLE_DEVICES": visible_device(number)}

    def describe(self) -> str:
        ahead = "" if self.max_ahead is None else f", up to {self.max_ahead} batches"
        return f"in another process, as far ahead as the schedule allows{ahead}"


def device_number(name: str, own: torch.device, count: int, ranks: int) -> int | None:
    """The CUDA device, of `count`, on which rollouts for the rank on device `own` are drawn; None
    on a CPU. Under auto these are the devices after those of the ranks, as many as ranks.

    Raises UserError for a device that does not exist, or is of another type than the run's.
    """
    if own.type != "cuda":
        if name != "auto":
            raise UserError(
                f"pipeline.device={name}: the run is on {own.type}, and another type of device "
                "rounds differently; use pipeline.device=auto"
            )
        return None
    if name == "auto":
        if count < 2 * ranks:
            raise UserError(
                f"pipeline.device=auto: {ranks} ranks and the processes that draw for them need "
                f"{2 * ranks} CUDA devices, and this machine has {count}; name the device that "
                "all of them use, as in pipeline.device=cuda:0, or use pipeline=sequential"
            )
        return (own.index or 0) + ranks
    number = int(name.removeprefix("cuda:"))
    if number >= count:
        raise UserError(
            f"pipeline.device={name}: there are {count} CUDA devices; use auto, or cuda:0 to "
            f"cuda:{count - 1}"
        )
    return number


def visible_device(number: int) -> str:
    """CUDA_VISIBLE_DEVICES for a process that sees only this process's device `number`."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return shown.split(",")[number] if shown else str(number)
