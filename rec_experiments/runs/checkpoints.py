"""Checkpoints of a run: checkpoints/step_NNNNNNNN, the newest two.

A checkpoint is a folder with one file per rank, as torch.save writes it. It is written under
another name and renamed once all ranks are done, so it is complete or absent. The files are zip
archives. torch ignores their checksums when it loads them; here they are verified first, and a
damaged checkpoint is skipped.

torch.distributed.checkpoint also loads flipped bytes without an error, reports a full disk as
"unexpected pos", and takes four times as long for a small model.

A thread can write a checkpoint while training continues. It writes the file of this rank only. The
ranks complete the checkpoint in their main threads: at the next `save`, between gradient steps, or
at the end.
"""

import errno
import os
import re
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, BinaryIO

from rec_experiments.common.distributed import World, copied_to_host
from rec_experiments.common.errors import UserError, first_line
from rec_experiments.common.files import atomic, remove, sync_folder
from rec_experiments.config.identity import refuse_other
from rec_experiments.training.protocol import State, foreign

KEPT = 2
NAME = re.compile(r"step_(\d{8,})")


class Checkpoints:
    """The checkpoints of one run, written and read by the ranks of `world` together. The weights of
    a state are split among the ranks by rows; all else is the same on every rank."""

    def __init__(self, folder: Path, world: World):
        self.folder, self.world = folder, world
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: tuple[int, Future[None]] | None = None  # the step, and the thread's work
        self._cancelled = threading.Event()

    def steps(self) -> list[int]:
        """Gradient steps that have a checkpoint, newest first."""
        if not self.folder.is_dir():
            return []
        folders = [
            each for each in self.folder.iterdir() if each.is_dir() and not each.is_symlink()
        ]
        names = [NAME.fullmatch(each.name) for each in folders]
        return sorted((int(name[1]) for name in names if name), reverse=True)

    def of(self, step: int) -> Path:
        """The folder of a checkpoint."""
        return self.folder / f"step_{step:08d}"

    def save(
        self, step: int, state: State, identity: dict[str, Any] | None, background: bool = False
    ) -> None:
        """Write a state after the previous one is complete. Every rank must call it.

        background: write a copy in a thread; `finish` completes it.
        """
        self.finish()
        temporary = self._temporary(step)
        if self.world.leads:
            remove(temporary)
            temporary.mkdir()
        self.world.barrier()
        state = {
            **state,
            "weights": self.world.parts(state["weights"]),
            "identity": identity,
            "ranks": self.world.size,
        }
        file = _file(temporary, self.world.rank)
        if background:
            self._cancelled.clear()
            self._writing = step, self._thread.submit(self._write, file, copied_to_host(state))
        else:
            self._write(file, state)
            self._complete(step)

    def finish(self, wait: bool = True) -> None:
        """Complete the checkpoint that a thread writes; with wait=False, only if the threads of all
        ranks are done. Raises what the thread raised, such as OSError for a full disk."""
        if self._writing is None:
            return
        step, written = self._writing
        if not wait and not all(self.world.gather(written.done())):
            return
        self._writing = None
        written.result()
        self._complete(step)

    def cancel(self) -> None:
        """Stop the thread. Its checkpoint stays incomplete."""
        if self._writing is not None:
            self._cancelled.set()
            wait([self._writing[1]])
            self._writing = None

    def _write(self, file: Path, state: State) -> None:
        import torch

        stream(file, lambda out: torch.save(state, out), self._cancelled.is_set)

    def _complete(self, step: int) -> None:
        """Rename the folder that all ranks have written, and remove the oldest checkpoint."""
        self.world.barrier()
        if self.world.leads:
            remove(self.of(step))
            os.replace(self._temporary(step), self.of(step))
            sync_folder(self.folder)
            for old in [each for each in self.steps() if each < step][KEPT - 1 :]:
                remove(self.of(old))

    def load(
        self, identity: dict[str, Any] | None, resplit: bool = False
    ) -> tuple[State | None, list[str]]:
        """The newest intact state with this rank's rows of the weights, or None; and the names of
        damaged checkpoints that are newer. Every rank must call it.

        resplit: accept a state of another number of ranks. Raises UserError for one without it, for
        a state of another run than `identity`, and for one that this code cannot read.
        """
        damaged: list[str] = []
        for step in self.world.gather(self.steps())[0]:
            folder, size = self.of(step), self.world.size
            ranks = self._intact_ranks(folder)
            if not ranks:
                damaged.append(folder.name)
                continue
            if ranks != size:
                if not resplit:
                    raise UserError(
                        f"checkpoint {folder}: was written by {ranks} ranks, and this run has "
                        f"{size}; resplit=true continues from it, but not bit-identically"
                    )
                identity = identity and {**identity, "ranks": ranks}
            return self._read(folder, ranks, identity), damaged
        return None, damaged

    def read(self, step: int) -> State | None:
        """A state of any run, or None if it is damaged."""
        ranks = self._intact_ranks(self.of(step))
        return self._read(self.of(step), ranks, None) if ranks else None

    def clear(self) -> None:
        """Remove all checkpoints."""
        for step in self.steps():
            remove(self.of(step))

    def _intact_ranks(self, folder: Path) -> int:
        """How many ranks wrote a checkpoint; 0 if the file of one is damaged or missing."""
        try:
            ranks: int = _load(_file(folder, 0))["ranks"]
        except Exception:  # torch raises any of a dozen types
            ranks = 1  # if the file is intact, `_read` will say what is wrong with it
        mine = range(self.world.rank, ranks, self.world.size)
        intact = all(is_intact(_file(folder, rank)) for rank in mine)
        return ranks if all(self.world.gather(intact)) else 0

    def _read(self, folder: Path, ranks: int, identity: dict[str, Any] | None) -> State:
        """The tensors are mapped from the files, and read when they are used."""
        try:
            states = [_load(_file(folder, rank)) for rank in range(ranks)]
            found, step = states[0].pop("identity"), states[0]["step"]
            weights = self.world.joined([state["weights"] for state in states])
        except Exception as error:  # as above, and what a state of other code leads to
            raise foreign(folder, first_line(error)) from error
        if folder != self.of(step):
            raise foreign(folder, f"it is of step {step}")
        if found is not None and identity is not None:
            refuse_other(found, identity, f"checkpoint {folder}: belongs to")
        return {**states[0], "weights": weights}

    def _temporary(self, step: int) -> Path:
        """The folder of a checkpoint that is being written."""
        return self.folder / f".{self.of(step).name}.partial"


def stream(
    path: Path, write: Callable[[Any], object], given_up: Callable[[], bool] = lambda: False
) -> None:
    """Write a file atomically, piece by piece, so that memory never holds all of it. `write` gets
    the open file. Raises OSError, also once `given_up` returns True."""
    with atomic(path) as file:
        out = _Output(file, given_up)
        write(out)
        if out.error:
            raise out.error


class _Output:
    """The file that torch writes to. It keeps an error for the end: torch continues to write after
    one, and would replace it by an error of its own."""

    def __init__(self, file: BinaryIO, given_up: Callable[[], bool]):
        self.file, self.given_up = file, given_up
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        if self.error is None:
            try:
                if self.given_up():
                    raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
                self.file.write(data)
            except OSError as error:
                self.error = error
        return memoryview(data).nbytes

    def flush(self) -> None:
        """`atomic` flushes the file at its end."""


def is_intact(file: Path) -> bool:
    """Whether a file that torch wrote is complete and has the right checksums."""
    try:
        with zipfile.ZipFile(file) as archive:
            return archive.testzip() is None
    except Exception:  # for a damaged archive, zipfile raises any of a dozen types
        return False


def _file(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.pt"


def _load(file: Path) -> State:
    import torch

    state: State = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    return state
