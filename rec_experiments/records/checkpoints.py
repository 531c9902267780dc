"""States of a run on disk: checkpoints/step_NNNNNNNN, the newest two.

A state is a folder with one file for each rank, and its digest. It counts if it is whole for all.
It carries the identity of its run: under another one it is refused. Other names are not touched.
"""

import os
import pickle
import re
from pathlib import Path
from typing import Any

from rec_experiments.distributed import World
from rec_experiments.errors import UserError, first_line
from rec_experiments.files import is_whole, remove, stream_with_digest, sync_folder
from rec_experiments.records.identity import refuse_other

KEPT = 2
NAME = re.compile(r"step_(\d{8,})")
IDENTITY = "identity"  # key of a state; None where the run is not known

State = dict[str, Any]


class Checkpoints:
    """Of one run, by the ranks of `world`. Every rank must call what saves or loads."""

    def __init__(self, folder: Path, world: World):
        self.folder, self.world = folder, world

    def steps(self) -> list[int]:
        """Gradient steps after which there is a state, newest first."""
        if not self.folder.is_dir():
            return []
        found = (NAME.fullmatch(each.name) for each in self.folder.iterdir() if _is_folder(each))
        return sorted((int(name[1]) for name in found if name), reverse=True)

    def save(self, step: int, state: State, identity: dict[str, Any] | None) -> None:
        """Each rank's state first, each with its digest; the folder is renamed last."""
        import torch

        target = self.of(step)
        temporary = self.folder / f".{target.name}.partial"
        if self.world.leads:
            remove(temporary)
            temporary.mkdir()
        self.world.barrier()
        whole = {**state, IDENTITY: identity}
        stream_with_digest(self._file(temporary), lambda file: torch.save(whole, file))
        self.world.barrier()
        if self.world.leads:
            remove(target)
            os.replace(temporary, target)
            sync_folder(self.folder)
            for old in [each for each in self.steps() if each < step][KEPT - 1 :]:
                remove(self.of(old))

    def load(self, identity: dict[str, Any] | None) -> tuple[State | None, list[str]]:
        """This rank's part of the newest state that is whole, and the names of damaged ones.

        The state is None if there is none. Raises UserError for one that is whole and of another
        run than `identity`, or that this code cannot read.
        """
        damaged: list[str] = []
        for step in self.world.gather(self.steps())[0]:
            folder = self.of(step)
            if all(self.world.gather(is_whole(self._file(folder)))):
                return self._checked(folder, identity), damaged
            damaged.append(folder.name)
        return None, damaged

    def read(self, step: int) -> State | None:
        """This rank's part of the state after so many gradient steps, whosever it is; None if it is
        not there or damaged."""
        folder = self.of(step)
        return self._checked(folder, None) if is_whole(self._file(folder)) else None

    def clear(self) -> None:
        """Remove all states."""
        for step in self.steps():
            remove(self.of(step))

    def _checked(self, folder: Path, identity: dict[str, Any] | None) -> State:
        """The state. Its tensors are read from the file when they are used."""
        import torch

        try:
            state: State = torch.load(
                self._file(folder), map_location="cpu", mmap=True, weights_only=True
            )
            found, step = state.pop(IDENTITY, None), state["step"]
        except (pickle.UnpicklingError, RuntimeError, AttributeError, TypeError, KeyError) as error:
            raise foreign(folder, first_line(error)) from error
        if step != _step(folder):
            raise foreign(folder, f"it is of step {step}")
        if found is not None and identity is not None:
            refuse_other(found, identity, f"checkpoint {folder}: belongs to")
        return state

    def of(self, step: int) -> Path:
        """The folder of a state."""
        return self.folder / f"step_{step:08d}"

    def _file(self, folder: Path) -> Path:
        """This rank's state."""
        return folder / f"rank_{self.world.rank}.pt"


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step_"))


def foreign(folder: Path, reason: str) -> UserError:
    """For a state that is whole and cannot be gone on with."""
    return UserError(
        f"checkpoint {folder}: does not fit this run or this code ({reason}); remove it, or choose "
        "another run_dir"
    )


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
