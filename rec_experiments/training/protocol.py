"""Interfaces of the trainer: its optimizer, and where it writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rec_experiments.common.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Row = dict[str, Any]  # of metrics.jsonl
State = dict[str, Any]  # nested dicts of plain values and tensors, as a checkpoint holds them


@runtime_checkable
class Optimizer(Protocol):
    """A choice of the group `optimizer`."""

    def build(self, model: nn.Module) -> torch.optim.Optimizer: ...

    def rate(self, step: int) -> float:
        """Learning rate of gradient step number `step`, counted from 0."""

    def step(self, optimizer: torch.optim.Optimizer, model: nn.Module, step: int) -> float | Tensor:
        """Take the step and clear the gradient. Returns the gradient's norm before clipping."""

    def describe(self) -> str:
        """A one-line description."""


class RunStore(Protocol):
    """Where the trainer writes its rows and states; `runs.run_folder.RunFolder` is one.

    Every rank calls every method.
    """

    def load_checkpoint(self, resplit: bool = False) -> tuple[State | None, list[str]]:
        """The newest intact state, or None, and the names of damaged ones. resplit: accept a state
        of another number of ranks."""

    def step_folder(self, step: int) -> Path:
        """Where the state after `step` gradient steps is."""

    def rewind(self, step: int) -> None:
        """Remove rows written after `step`."""

    def append(self, name: str, rows: list[Row]) -> None: ...

    def save_checkpoint(self, step: int, state: State, background: bool = False) -> None:
        """background: write in a thread, inside `writing`."""

    def writing(self) -> AbstractContextManager[Callable[[], None]]:
        """Inside, a thread may write states. The function it gives finishes those on disk."""


def foreign(folder: Path, reason: str) -> UserError:
    """For a checkpoint that is intact but cannot be used."""
    return UserError(
        f"checkpoint {folder}: does not fit this run or this code ({reason}); remove it, or choose "
        "another run_dir"
    )
