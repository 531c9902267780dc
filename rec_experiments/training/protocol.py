"""Where the trainer writes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from rec_experiments.common.errors import UserError

Row = dict[str, Any]  # of metrics.jsonl
State = dict[str, Any]  # nested dicts of plain values and tensors, as a checkpoint holds them


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
