"""A run folder: a reproducible object on disk. Every file is whole or absent.

config.yaml      the resolved experiment          provenance.json  commit, code, device, every start
metrics.jsonl    one object per gradient step     samples.jsonl    a few responses per evaluation
status.json      see below                        checkpoints/     the newest two states
curves.png       the picture of the run           log.txt          output of a sweep's job

status.json holds the state, since when, and why:
running       a process has taken the folder; one that was killed cannot take this back
done          all steps
failed        an exception, with its traceback
interrupted   stopped from outside: by SIGTERM, SIGHUP or SIGUSR1, as when a job is preempted or its
              terminal is closed, with its state saved, or by Ctrl-C. The same command resumes the
              run, as it does the others

A folder without config.yaml is a run's only if it holds nothing but what comes before it.
"""

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import yaml

from rec_experiments.config.identity import identity, refuse_other
from rec_experiments.distributed import ALONE, World
from rec_experiments.errors import UserError
from rec_experiments.files import (
    PARTIAL,
    PRIVATE,
    no_link,
    open_regular,
    remove,
    sync_folder,
    write_atomic,
)
from rec_experiments.runs import code, provenance
from rec_experiments.runs.checkpoints import Checkpoints, Resplit
from rec_experiments.runs.reading import last_row, read_object, read_rows, unreadable
from rec_experiments.tracking.trackers import ID_FILE

LOCK_PATIENCE = 2.0  # seconds: one that only looks, or that is about to end, may hold the lock
ROWS = ("metrics.jsonl", "samples.jsonl")
TAIL = 1 << 16  # bytes; more than a row of metrics
CONFIG, STATES, LOCK = "config.yaml", "checkpoints", ".lock"
BEFORE_CONFIG = (LOCK, "log.txt")  # what may stand in a folder before its run has begun
OF_EVERY_RUN = {"algo", "sync", "seed", "steps"}  # keys of its configuration
NAMED = 3  # of the files that make a folder a stranger's


class RunFolder:
    """One run on disk. Nothing is written before `start`.

    Of several ranks the first writes everything but the parts that the others have in a checkpoint.
    """

    def __init__(self, path: Path, world: World = ALONE):
        self.path, self.world = path, world
        self.checkpoints = path / STATES
        self._states = Checkpoints(self.checkpoints, world)
        self._identity: dict[str, Any] | None = None  # of the run, once it has started

    def status(self) -> dict[str, Any]:
        """Contents of status.json; {} for a run that never started. Raises UserError if it is
        damaged, as all do here that read."""
        return read_object(self.path / "status.json")

    def provenance(self) -> dict[str, Any]:
        """Contents of provenance.json; {} without one."""
        found = read_object(self.path / "provenance.json")
        if not code.is_sound(found):
            raise unreadable(self.path / "provenance.json", code.STRANGE)
        return found

    def made_by(self) -> str:
        """Who made the run, if not this code alone; as `code.made_by`."""
        return code.made_by(self.provenance())

    def is_finished(self, remake: bool) -> bool:
        """Whether nothing is left to do. remake: a run of other code is to be made again."""
        return self.status().get("state") == "done" and not (remake and self.made_by())

    def check(self, config: dict[str, Any]) -> None:
        """Raise UserError if the folder cannot be used for the experiment `config`."""
        places = [self.path, *self.path.parents]
        try:
            parent = next(place for place in places if place.exists() or place.is_symlink())
        except OSError as error:  # a name that is too long, a folder that is closed to us
            raise UserError(f"run_dir={self.path}: cannot be used ({error.strerror})") from None
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise UserError(f"run_dir={self.path}: {parent} is not a folder that can be written to")
        if not self.path.exists():
            return
        if not (self.path / CONFIG).exists():
            self._refuse_a_strangers_folder()
            return
        found = read_object(self.path / CONFIG)
        if not found.keys() >= OF_EVERY_RUN:
            raise UserError(
                f"run_dir={self.path}: its {CONFIG} is not that of a run; choose another run_dir"
            )
        wanted = identity(config)
        if config.get("resplit"):
            wanted["ranks"] = found.get("ranks")
        refuse_other(identity(found), wanted, f"run_dir={self.path}: holds")

    def _refuse_a_strangers_folder(self) -> None:
        """Raise UserError for a folder without config.yaml that holds anything else."""
        names = sorted(each.name for each in self.path.iterdir() if not _is_before_config(each))
        if names:
            shown = ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
            raise UserError(
                f"run_dir={self.path}: holds {shown} and no {CONFIG} of a run; choose another "
                f"run_dir, or put back the {CONFIG} that was lost"
            )

    def start(self, config: dict[str, Any], now: dict[str, Any], remake: bool = False) -> None:
        """Take the folder for this process. Raises UserError if another process holds it.

        now: where the process comes from; earlier starts stay in provenance.json. remake: what
        other code made in the folder is removed first.
        """
        self._identity = identity(config)
        if not self.world.leads:
            return
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / LOCK, "w", opener=no_link)  # noqa: SIM115 (until the end)
        except OSError as error:
            raise UserError(f"run_dir={self.path}: cannot be written ({error.strerror})") from error
        if not _lock(self._lock, fcntl.LOCK_EX, LOCK_PATIENCE):
            raise UserError(f"run_dir={self.path}: another process is running it")
        self.check(config)  # once more: another process may have begun and ended meanwhile
        for folder in (self.path, self.checkpoints):
            for left in folder.glob(PARTIAL):  # of a process that was killed while it wrote
                remove(left)
        if remake and self.made_by():
            self._clear()
        origin = provenance.after(self.provenance(), now, max([0, *self._states.steps()]))
        write_atomic(
            self.path / CONFIG,
            yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode(),
        )
        # Changes that no commit holds may be nobody else's business.
        write_atomic(self.path / "provenance.json", _json(origin), PRIVATE)
        self.set_status("running")

    def _clear(self) -> None:
        """Remove rows, states and pictures, in an order that may be cut off anywhere.

        From the first line on the run is no longer done, and one without states begins anew: it
        drops the rows that are left. Until then they are those of the starts in provenance.json.
        """
        self.set_status("running")
        self._states.clear()
        for name in (*ROWS, "curves.png", ID_FILE):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / "wandb", ignore_errors=True)
        sync_folder(self.path)

    def is_held(self) -> bool:
        """Whether a living process has taken the folder, as far as this machine can see."""
        try:
            with open_regular(self.path / LOCK) as lock:
                return not _lock(lock, fcntl.LOCK_SH, 0)
        except OSError:  # it was never taken, is not ours to look at, or is something else
            return False

    def set_status(self, state: str, **details: Any) -> None:
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        write_atomic(self.path / "status.json", _json({"state": state, "since": since, **details}))

    def rewind(self, step: int) -> None:
        """Forget rows written after `step`, and continue the row files from there."""
        if not self.world.leads:
            return
        self.set_status("running", from_step=max(step, 0))
        for name in ROWS:
            kept = (line for line, row in read_rows(self.path / name) if row["step"] <= step)
            write_atomic(self.path / name, b"".join(line + b"\n" for line in kept))

    def append(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Add rows to metrics.jsonl or samples.jsonl."""
        if not self.world.leads:
            return
        with open(self.path / name, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def metrics(self) -> list[dict[str, Any]]:
        return [row for _, row in read_rows(self.path / "metrics.jsonl")]

    def last_step(self) -> int:
        """Of the last whole row of metrics.jsonl; 0 if there is none."""
        row = last_row(self.path / "metrics.jsonl", TAIL)
        return row["step"] if row else 0

    def save_checkpoint(self, step: int, state: dict[str, Any], beside: bool = False) -> None:
        """Save each rank's state, once all rows are on disk. Every rank must call it.

        beside: while training goes on, within `writing`.
        """
        if self.world.leads:
            for name in ROWS:
                with open(self.path / name, "ab") as rows:
                    os.fsync(rows.fileno())
        self._states.save(step, state, self._identity, beside)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Callable[[], None]]:
        """Within, states can be written beside training. The last one is waited for at the end; an
        error gives it up. What it yields is called now and then, by every rank: it ends what has
        been written meanwhile, and raises what went wrong."""
        try:
            yield lambda: self._states.settle(wait=False)
            self._states.settle()
        except BaseException:
            self._states.give_up()
            raise

    def load_checkpoint(
        self, resplit: Resplit | None = None
    ) -> tuple[dict[str, Any] | None, list[str]]:
        """As `Checkpoints.load`, for the run that has started here."""
        return self._states.load(self._identity, resplit)

    def step_folder(self, step: int) -> Path:
        """Of the state after so many gradient steps."""
        return self._states.of(step)


def _lock(file: IO[Any], kind: int, patience: float) -> bool:
    """Lock the file within `patience` seconds, if that is possible."""
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)


def _is_before_config(path: Path) -> bool:
    """Whether it may stand in a folder before its run has begun."""
    if path.name == STATES:
        return path.is_dir() and not any(path.iterdir())
    return path.name in BEFORE_CONFIG or path.match(PARTIAL)


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
