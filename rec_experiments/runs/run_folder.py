"""A run folder: a reproducible object on disk. Every file is whole or absent.

config.yaml      the resolved experiment          provenance.json  commit, code, device, every start
metrics.jsonl    one object per gradient step     samples.jsonl    a few responses per evaluation
status.json      see below                        checkpoints/     the newest two states
curves.png       the curves of the run            log.txt          output of a sweep's job

status.json holds the state, since when, and why:
running       a process started the run; the status stays if that process is killed
done          all steps are done
failed        an exception ended the run; its traceback is in the file
interrupted   SIGTERM, SIGHUP or SIGUSR1 ended the run, as when a job is preempted or its terminal
              closes (the state was saved), or Ctrl-C did. The same command resumes the run

A folder without config.yaml is accepted for a run only if it is empty or holds files that a run
writes before config.yaml.
"""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import yaml

from rec_experiments.common.distributed import ALONE, World
from rec_experiments.common.errors import ELSEWHERE, UserError
from rec_experiments.common.files import PARTIAL, PRIVATE, lock, remove, sync_folder, write_atomic
from rec_experiments.config.identity import identity, refuse_other
from rec_experiments.runs import provenance
from rec_experiments.runs.checkpoints import Checkpoints
from rec_experiments.runs.reading import last_row, read_object, read_rows, unreadable
from rec_experiments.runs.trackers import RECORD
from rec_experiments.training.protocol import State

LOCK_PATIENCE = 2.0  # seconds; a reader or an ending process may hold the lock briefly
ROWS = ("metrics.jsonl", "samples.jsonl")
CONFIG, PROVENANCE, STATES, LOCK = "config.yaml", "provenance.json", "checkpoints", ".lock"
BEFORE_CONFIG = (LOCK, "log.txt")  # files that may exist before the run's config.yaml
OF_EVERY_RUN = {"algo", "sync", "seed", "steps"}  # keys that every config.yaml has


class RunFolder:
    """One run on disk. Nothing is written before `start`.

    The first rank writes everything except the other ranks' parts of a checkpoint.
    """

    def __init__(self, path: Path, world: World = ALONE):
        self.path, self.world = path, world
        self.checkpoints = path / STATES
        self._checkpoints = Checkpoints(self.checkpoints, world)
        self._identity: dict[str, Any] | None = None  # set by `start`
        self._lock: IO[Any] | None = None

    def status(self) -> dict[str, Any]:
        """Contents of status.json, or {} if there is none. Like every method that reads, it raises
        UserError for a damaged file."""
        return read_object(self.path / "status.json")

    def provenance(self) -> dict[str, Any]:
        """Contents of provenance.json, or {} if there is none."""
        origin = read_object(self.path / PROVENANCE)
        if not provenance.is_of_a_run(origin):
            raise unreadable(self.path / PROVENANCE, "it is not that of a run")
        return origin

    def command(self) -> list[str]:
        """The words of the command that started the run first; [] if unknown."""
        first = [*provenance.starts(self.provenance()), {}][0]
        return [str(word) for word in first.get("command", [])]

    def other_releases(self) -> str:
        """The releases other than this one that computed steps, as in "release 11"; or ""."""
        return provenance.other_releases(self.provenance())

    def is_finished(self, remake: bool) -> bool:
        """Whether nothing is left to do. remake: runs of other releases have to be repeated."""
        return self.status().get("state") == "done" and not (remake and self.other_releases())

    def check(self, config: dict[str, Any]) -> None:
        """Raise UserError if the folder cannot be used for the experiment `config`."""
        places = [self.path, *self.path.parents]
        try:
            parent = next(place for place in places if place.exists() or place.is_symlink())
        except OSError as error:  # the name is too long, or access is denied
            raise UserError(f"run_dir={self.path}: cannot be used ({error.strerror})") from None
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise UserError(f"run_dir={self.path}: {parent} is not a writable folder")
        if not self.path.exists():
            return
        if not (self.path / CONFIG).exists():
            others = sorted(each for each in self.path.iterdir() if not _is_before_config(each))
            if others:
                raise UserError(
                    f"run_dir={self.path}: holds {others[0].name} but no {CONFIG}; choose another "
                    f"run_dir, or restore the {CONFIG} if it was lost"
                )
            return
        found, wanted = read_config(self.path), identity(config)
        if config.get("resplit"):
            wanted["ranks"] = found.get("ranks")
        refuse_other(identity(found), wanted, f"run_dir={self.path}: holds")

    def start(self, config: dict[str, Any], now: dict[str, Any], remake: bool = False) -> None:
        """Lock the folder and set its status. Raises UserError if another process has the lock.

        now: of `provenance.collect`; earlier starts stay in provenance.json. remake: remove the
        results of other releases first.
        """
        self._identity = identity(config)
        if not self.world.leads:
            return
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / LOCK, "w")  # noqa: SIM115 (held until the process ends)
        except OSError as error:
            raise UserError(f"run_dir={self.path}: cannot be written ({error.strerror})") from error
        if not lock(self._lock, patience=LOCK_PATIENCE):
            raise UserError(f"run_dir={self.path}: {ELSEWHERE}")
        self.check(config)  # again: another process may have run since the first check
        for folder in (self.path, self.checkpoints):
            for left in folder.glob(PARTIAL):  # by a process that was killed while writing
                remove(left)
        if remake and self.other_releases():
            self._clear()
        elif self._checkpoints.steps() and (key := provenance.changed(self.provenance(), now)):
            what, restored = provenance.UNCHANGED[key]
            raise UserError(
                f"run_dir={self.path}: {what} have changed since it started; restore {restored}, "
                "or choose another run_dir"
            )
        origin = provenance.after(self.provenance(), now, self.saved_step())
        write_atomic(
            self.path / CONFIG,
            yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode(),
        )
        # Uncommitted changes may be confidential.
        write_atomic(self.path / PROVENANCE, _json(origin), PRIVATE)
        self.set_status("running")

    def unlock(self) -> None:
        """Release the lock of `start`, so that this process can run the folder again."""
        if self._lock is not None:
            self._lock.close()

    def _clear(self) -> None:
        """Remove rows, states and pictures. It is safe to interrupt at any point.

        The status changes first, so the run no longer counts as done. A run without states starts
        from the beginning and drops the remaining rows.
        """
        self.set_status("running")
        self._checkpoints.clear()
        for name in (*ROWS, "curves.png", RECORD):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / "wandb", ignore_errors=True)
        sync_folder(self.path)

    def is_held(self) -> bool:
        """Whether a process on this machine holds the folder's lock."""
        try:
            with open(self.path / LOCK, "rb") as file:
                return not lock(file, fcntl.LOCK_SH, 0)
        except OSError:  # never locked, not readable, or no file
            return False

    def set_status(self, state: str, **details: Any) -> None:
        since = datetime.now().astimezone().isoformat(timespec="seconds")
        write_atomic(self.path / "status.json", _json({"state": state, "since": since, **details}))

    def rewind(self, step: int) -> None:
        """Drop the rows after `step`; new rows follow there. Raises UserError as `check_rows`."""
        if not self.world.leads:
            return
        self.check_rows(step)
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

    def check_rows(self, step: int) -> None:
        """Raise UserError unless metrics.jsonl has a row for every step from 0 to `step`."""
        lost = {*range(step + 1)} - {row["step"] for row in self.metrics()}
        if lost:
            raise unreadable(
                self.path / "metrics.jsonl",
                f"it has lost the rows of {len(lost)} steps, the first is {min(lost)}",
            )

    def last_step(self) -> int:
        """The step of the last complete row of metrics.jsonl, 0 if there is none."""
        row = last_row(self.path / "metrics.jsonl")
        return row["step"] if row else 0

    def last_sample(self) -> dict[str, Any] | None:
        """The last complete row of samples.jsonl, or None if there is none."""
        return last_row(self.path / "samples.jsonl")

    def saved_step(self) -> int:
        """The step of the newest checkpoint, 0 if there is none."""
        return max([0, *self._checkpoints.steps()])

    def save_checkpoint(self, step: int, state: State, background: bool = False) -> None:
        """Save the state once all rows are on disk. Every rank must call it.

        background: in a thread, inside `writing`.
        """
        if self.world.leads:
            for name in ROWS:
                with open(self.path / name, "ab") as rows:
                    os.fsync(rows.fileno())
        self._checkpoints.save(step, state, self._identity, background)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Callable[[], None]]:
        """Inside, threads may write checkpoints; an error cancels the one that is being written.

        It yields a function that every rank calls now and then: it completes a checkpoint that is
        on disk, and raises what went wrong in the thread.
        """
        try:
            yield lambda: self._checkpoints.finish(wait=False)
            self._checkpoints.finish()
        except BaseException:
            self._checkpoints.cancel()
            raise

    def load_checkpoint(self, resplit: bool = False) -> tuple[State | None, list[str]]:
        """As `Checkpoints.load`, for the run that was started here."""
        return self._checkpoints.load(self._identity, resplit)

    def step_folder(self, step: int) -> Path:
        """The folder of the checkpoint after `step` gradient steps."""
        return self._checkpoints.of(step)


def _is_before_config(path: Path) -> bool:
    """Whether a run may have created it before config.yaml."""
    if path.name == STATES:
        return path.is_dir() and not any(path.iterdir())
    return path.name in BEFORE_CONFIG or path.match(PARTIAL)


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def read_config(path: Path) -> dict[str, Any]:
    """The resolved configuration of a run. Raises UserError if the folder has none."""
    config = read_object(path / CONFIG)
    if not config:
        raise UserError(f"{path}: is not a run folder; it has no {CONFIG}")
    if not config.keys() >= OF_EVERY_RUN:
        raise UserError(f"run folder {path}: its {CONFIG} is not that of a run")
    return config
