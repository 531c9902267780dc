"""Where batches are drawn: by the process that trains, in turn, or by another one beside it.

Overlapped and sequential runs are equal bit for bit, because a batch is a function of its number,
the seed and the weights, and the schedule names the weights. So are the checkpoints of a process
alone. On a GPU that takes deterministic=true and the native sampler (docs/operations.md).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rec_experiments.errors import UserError
from rec_experiments.types import Piece, check_range

if TYPE_CHECKING:
    import torch

    from rec_experiments.rollout.remote import Build
    from rec_experiments.rollout.worker import RolloutWorker, Weights


@dataclass(kw_only=True)
class Sequential(Piece):
    """Draw in the process that trains, in turn with it."""

    def check(self, device: torch.device, ranks: int) -> None:
        """Any device of the run will do."""

    def start(self, here: Build, elsewhere: Build, weights: Weights, ranks: int) -> RolloutWorker:
        """`here` makes the worker in this process."""
        return here()

    def describe(self) -> str:
        return "drawn in turn with training"


@dataclass(kw_only=True)
class Overlap(Piece):
    """Draw in another process while this one trains.

    device: auto or cuda:N. max_ahead: batches drawn and not yet consumed, None for as many as the
    schedule allows. timeout: seconds that the start or an awaited batch may take.
    """

    device: str
    max_ahead: int | None
    timeout: float

    def __post_init__(self) -> None:
        if not re.fullmatch(r"auto|cuda:\d+", self.device):
            raise ValueError(f"device={self.device}: must be auto or cuda:N")
        check_range(self, "max_ahead", least=1, hint=", or null")
        check_range(self, "timeout", above=0)

    def check(self, device: torch.device, ranks: int) -> None:
        """Raise UserError if `device` of this object does not go with the run's."""
        import torch

        device_number(self.device, device, torch.cuda.device_count(), ranks)

    def start(self, here: Build, elsewhere: Build, weights: Weights, ranks: int) -> RolloutWorker:
        """`elsewhere` makes the worker in another process. `weights`: the layout of all to come.
        ranks: how many processes train, each with a process of its own that draws.

        Raises UserError for what the user can mend, whichever process finds it.
        """
        import torch

        from rec_experiments.determinism import drawing_environment
        from rec_experiments.rollout.remote import RemoteWorker

        device = next(iter(weights.values())).device
        number = device_number(self.device, device, torch.cuda.device_count(), ranks)
        variables = {}
        if number is not None:
            variables = {
                "CUDA_VISIBLE_DEVICES": visible_device(number),
                **drawing_environment(number),
            }
        return RemoteWorker(
            elsewhere, weights, ahead=self.max_ahead, timeout=self.timeout, environment=variables
        )

    def describe(self) -> str:
        ahead = "" if self.max_ahead is None else f", up to {self.max_ahead} batches"
        return f"drawn beside training, as far ahead as the schedule allows{ahead}"


def device_number(name: str, own: torch.device, count: int, ranks: int) -> int | None:
    """Which of `count` CUDA devices draws for a rank on device `own`; None for a run on the CPU.

    The devices that train come first, then as many that draw, if there are enough.

    Raises UserError for a device that is not there, or not of the kind of the run's.
    """
    if own.type != "cuda":
        if name != "auto":
            raise UserError(
                f"pipeline.device={name}: the run is on {own.type}, and another kind of device "
                "draws other bits; use pipeline.device=auto"
            )
        return None
    index = own.index or 0
    if name == "auto":
        return index + ranks if index + ranks < count else index
    number = int(name.removeprefix("cuda:"))
    if number >= count:
        raise UserError(
            f"pipeline.device={name}: there are {count} CUDA devices; use auto, or cuda:0 to "
            f"cuda:{count - 1}"
        )
    return number


def visible_device(number: int) -> str:
    """CUDA_VISIBLE_DEVICES for a process that is to see only this process's device `number`."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return shown.split(",")[number] if shown else str(number)
