"""States of a run on disk: checkpoints/step_NNNNNNNN, the newest two.

A state is a folder with one file for each rank, and its digest. It counts if it is whole for all.
It carries the identity of its run: under another one it is refused. Other names are not touched.

It can be written in a thread while training goes on. The thread writes this rank's file alone; what
the ranks do together, they do where they all are: when the next state is saved, when training ends,
and between gradient steps once all are done.
"""

import os
import pickle
import re
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rec_experiments.config.identity import refuse_other
from rec_experiments.distributed import World, copied_to_host
from rec_experiments.errors import UserError, first_line
from rec_experiments.files import is_whole, remove, stream_with_digest, sync_folder

KEPT = 2
NAME = re.compile(r"step_(\d{8,})")
IDENTITY = "identity"  # key of a state; None where the run is not known
RANKS = "ranks"  # key of a state: how many wrote it

# What torch raises for a file that it does not understand, and a state of other code for its keys.
UNREADABLE = (pickle.UnpicklingError, RuntimeError, AttributeError, TypeError, KeyError)

State = dict[str, Any]
Resplit = Callable[[list[State]], State]  # of what each rank wrote, what this one goes on with


@dataclass(slots=True)
class Writing:
    """A state that a thread writes."""

    step: int
    given_up: threading.Event = field(default_factory=threading.Event)
    done: Future[None] = field(default_factory=Future)


class Checkpoints:
    """Of one run, by the ranks of `world`. Every rank must call what saves or loads."""

    def __init__(self, folder: Path, world: World):
        self.folder, self.world = folder, world
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Writing | None = None

    def steps(self) -> list[int]:
        """Gradient steps after which there is a state, newest first."""
        if not self.folder.is_dir():
            return []
        found = (NAME.fullmatch(each.name) for each in self.folder.iterdir() if _is_folder(each))
        return sorted((int(name[1]) for name in found if name), reverse=True)

    def save(
        self, step: int, state: State, identity: dict[str, Any] | None, beside: bool = False
    ) -> None:
        """Each rank's state first, each with its digest; the folder is renamed last.

        beside: it is written in a thread, from a copy on the host, and `settle` ends it. An earlier
        one is settled first.
        """
        self.settle()
        temporary = self._partial(step)
        if self.world.leads:
            remove(temporary)
            temporary.mkdir()
        self.world.barrier()
        whole = {**state, IDENTITY: identity, RANKS: self.world.size}
        if beside:
            self._writing = Writing(step)
            self._writing.done = self._thread.submit(
                _write, self._mine(temporary), copied_to_host(whole), self._writing.given_up
            )
        else:
            _write(self._mine(temporary), whole, threading.Event())
            self._name(step)

    def settle(self, wait: bool = True) -> None:
        """End what a thread writes, if one does; with wait=False only if every rank's has ended.

        Raises what that thread has raised, as OSError for a full disk.
        """
        if self._writing is None:
            return
        if not wait and not all(self.world.gather(self._writing.done.done())):
            return
        self._writing.done.result()
        step, self._writing = self._writing.step, None
        self._name(step)

    def give_up(self) -> None:
        """Leave what a thread writes undone; the state before it counts."""
        if self._writing is not None:
            self._writing.given_up.set()
            wait([self._writing.done])
            self._writing = None

    def _name(self, step: int) -> None:
        """A state that every rank has written gets its name, and the oldest one goes."""
        target = self.of(step)
        self.world.barrier()
        if self.world.leads:
            remove(target)
            os.replace(self._partial(step), target)
            sync_folder(self.folder)
            for old in [each for each in self.steps() if each < step][KEPT - 1 :]:
                remove(self.of(old))

    def load(
        self, identity: dict[str, Any] | None, resplit: Resplit | None = None
    ) -> tuple[State | None, list[str]]:
        """This rank's part of the newest state that is whole, and the names of damaged ones.

        The state is None if there is none. resplit: makes it of one that another number of ranks
        wrote. Raises UserError for such a one without it, for one that is whole and of another run
        than `identity`, and for one that this code cannot read.
        """
        damaged: list[str] = []
        for step in self.world.gather(self.steps())[0]:
            folder, size = self.of(step), self.world.size
            writers = self._writers(folder)
            if not writers:
                damaged.append(folder.name)
            elif writers == size:
                return self._checked(folder, self.world.rank, identity), damaged
            elif resplit is None:
                raise UserError(
                    f"checkpoint {folder}: is split among {writers} ranks, and here are {size}; "
                    "resplit=true goes on from it, not bit for bit"
                )
            else:
                identity = {**identity, "ranks": writers} if identity else None
                parts = [self._checked(folder, rank, identity) for rank in range(writers)]
                return resplit(parts), damaged
        return None, damaged

    def parts(self, step: int) -> list[State]:
        """What each rank wrote of the state after so many gradient steps, whosever it is. Empty if
        it is not there, or damaged. For a process alone."""
        folder = self.of(step)
        return [self._checked(folder, rank, None) for rank in range(self._writers(folder))]

    def _writers(self, folder: Path) -> int:
        """How many ranks wrote a state; 0 if it is damaged on one of them."""
        writers = self.world.gather(_told(folder) if self.world.leads else None)[0]
        writers = self.world.size if writers is None else writers
        mine = range(self.world.rank, writers, self.world.size)
        whole = all(is_whole(_file(folder, rank)) for rank in mine)
        return writers if all(self.world.gather(whole)) else 0

    def clear(self) -> None:
        """Remove all states."""
        for step in self.steps():
            remove(self.of(step))

    def _checked(self, folder: Path, rank: int, identity: dict[str, Any] | None) -> State:
        """A rank's part. Its tensors are read from the file when they are used."""
        try:
            state = _read(_file(folder, rank))
            found, step = state.pop(IDENTITY, None), state["step"]
            state.pop(RANKS, None)
        except UNREADABLE as error:
            raise foreign(folder, first_line(error)) from error
        if step != _step(folder):
            raise foreign(folder, f"it is of step {step}")
        if found is not None and identity is not None:
            refuse_other(found, identity, f"checkpoint {folder}: belongs to")
        return state

    def of(self, step: int) -> Path:
        """The folder of a state."""
        return self.folder / f"step_{step:08d}"

    def _partial(self, step: int) -> Path:
        """The folder of a state that is being written."""
        return self.folder / f".{self.of(step).name}.partial"

    def _mine(self, folder: Path) -> Path:
        """This rank's file."""
        return _file(folder, self.world.rank)


def _file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.pt"


def _read(file: Path) -> State:
    import torch

    state: State = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    return state


def _told(folder: Path) -> int | None:
    """How many ranks wrote a state, as it says itself; None if it does not."""
    try:
        state = _read(_file(folder, 0))
        ranks: int | None = state.get(RANKS) or (state[IDENTITY] or {}).get("ranks")
    except (*UNREADABLE, OSError):
        return None
    return ranks


def _write(file: Path, state: State, given_up: threading.Event) -> None:
    import torch

    stream_with_digest(file, lambda stream: torch.save(state, stream), given_up.is_set)


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
