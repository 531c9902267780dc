"""A run folder: a reproducible object on disk. Every file is whole or absent.

config.yaml      the resolved experiment          provenance.json  commit, code, device, every start
metrics.jsonl    one object per gradient step     samples.jsonl    a few responses per evaluation
status.json      see below                        checkpoints/     the newest two states
curves.png       the picture of the run           log.txt          output of a sweep's job

status.json holds the state, since when, and why:
running       a process has taken the folder; one that was killed cannot take this back
done          all steps
failed        an exception, with its traceback
interrupted   stopped from outside: by SIGTERM, as when a job is preempted or its time is over, with
              its state saved, or by Ctrl-C. The same command resumes the run, as it does the others

A state is a folder with one file for each rank, and its digest. It counts if it is whole for all.
"""

import fcntl
import hashlib
import io
import json
import os
import shutil
import time
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import yaml

from rec_experiments.distributed import ALONE, World
from rec_experiments.errors import UserError
from rec_experiments.files import sync_folder, write_atomic
from rec_experiments.records import code, provenance
from rec_experiments.records.identity import identity
from rec_experiments.records.tracking import ID_FILE

CHECKPOINTS_KEPT = 2
LOCK_PATIENCE = 2.0  # seconds: one that only looks, or that is about to end, may hold the lock
ROWS = ("metrics.jsonl", "samples.jsonl")
TAIL = 1 << 16  # bytes; more than a row of metrics


def _read_rows(path: Path, last_step: int) -> bytes:
    """The whole lines of a JSON Lines file up to `last_step`; a torn last line is left out."""
    if not path.exists():
        return b""
    lines = path.read_bytes().split(b"\n")[:-1]
    return b"".join(line + b"\n" for line in lines if json.loads(line)["step"] <= last_step)


class RunFolder:
    """One run on disk. Nothing is written before `start`.

    Of several ranks the first writes everything but the parts that the others have in a checkpoint.
    """

    def __init__(self, path: Path, world: World = ALONE):
        self.path, self.world = path, world
        self.checkpoints = path / "checkpoints"

    def status(self) -> dict[str, Any]:
        """Contents of status.json; {} for a run that never started."""
        file = self.path / "status.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def provenance(self) -> dict[str, Any]:
        """Contents of provenance.json; {} without one. Raises UserError if it is damaged."""
        file = self.path / "provenance.json"
        try:
            return json.loads(file.read_text()) if file.exists() else {}
        except ValueError as error:
            raise UserError(
                f"run folder {self.path}: {file.name} cannot be read ({error})"
            ) from error

    def made_by(self) -> str:
        """Who made the run, if not this code alone; as `code.made_by`."""
        return code.made_by(self.provenance())

    def is_finished(self, remake: bool) -> bool:
        """Whether nothing is left to do. remake: a run of other code is to be made again."""
        return self.status().get("state") == "done" and not (remake and self.made_by())

    def check(self, config: dict[str, Any]) -> None:
        """Raise UserError if the folder cannot be used for the experiment `config`."""
        parent = next(p for p in [self.path, *self.path.parents] if p.exists() or p.is_symlink())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            raise UserError(f"run_dir={self.path}: {parent} is not a folder that can be written to")
        saved = self.path / "config.yaml"
        if not saved.exists():
            return
        found, wanted = identity(yaml.safe_load(saved.read_text())), identity(config)
        if found.keys() != wanted.keys():
            strange = ", ".join(sorted(found.keys() ^ wanted.keys()))
            raise UserError(
                f"run_dir={self.path}: holds a run of another version of this package, with or "
                f"without the keys {strange}; choose another run_dir"
            )
        before, now = flat(found), flat(wanted)
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key):
                raise UserError(
                    f"run_dir={self.path}: holds another experiment, {key} is {before.get(key)} "
                    f"there and {now.get(key)} here; choose another run_dir"
                )

    def start(self, config: dict[str, Any], now: dict[str, Any], remake: bool = False) -> None:
        """Take the folder for this process. Raises UserError if another process holds it.

        now: where the process comes from; earlier starts stay in provenance.json. remake: what
        other code made in the folder is removed first.
        """
        if not self.world.leads:
            return
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / ".lock", "w")  # noqa: SIM115 (held until the process ends)
        except OSError as error:
            raise UserError(f"run_dir={self.path}: cannot be written ({error.strerror})") from error
        if not _lock(self._lock, fcntl.LOCK_EX, LOCK_PATIENCE):
            raise UserError(f"run_dir={self.path}: another process is running it")
        if remake and self.made_by():
            self._clear()
        newest = self._checkpoint_folders()[:1]
        from_step = int(newest[0].name.removeprefix("step_")) if newest else 0
        write_atomic(
            self.path / "config.yaml",
            yaml.safe_dump(config, sort_keys=False, allow_unicode=True).encode(),
        )
        origin = provenance.after(self.provenance(), now, from_step)
        write_atomic(self.path / "provenance.json", _json(origin))
        self.set_status("running")

    def _clear(self) -> None:
        """Remove rows, states and pictures, in an order that may be cut off anywhere.

        From the first line on the run is no longer done, and one without states begins anew: it
        drops the rows that are left. Until then they are those of the starts in provenance.json.
        """
        self.set_status("running")
        for state in self._checkpoint_folders():
            shutil.rmtree(state)
        for name in (*ROWS, "curves.png", ID_FILE):
            (self.path / name).unlink(missing_ok=True)
        shutil.rmtree(self.path / "wandb", ignore_errors=True)
        sync_folder(self.path)

    def is_held(self) -> bool:
        """Whether a living process has taken the folder, as far as this machine can see."""
        try:
            with open(self.path / ".lock") as lock:
                return not _lock(lock, fcntl.LOCK_SH, 0)
        except FileNotFoundError:
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
            write_atomic(self.path / name, _read_rows(self.path / name, step))

    def append(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Add rows to metrics.jsonl or samples.jsonl."""
        if not self.world.leads:
            return
        with open(self.path / name, "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def metrics(self) -> list[dict[str, Any]]:
        rows = _read_rows(self.path / "metrics.jsonl", 1 << 62)
        return [json.loads(line) for line in rows.splitlines()]

    def last_step(self) -> int:
        """Of the last whole row of metrics.jsonl; 0 if there is none."""
        file = self.path / "metrics.jsonl"
        if not file.exists():
            return 0
        with open(file, "rb") as rows:
            rows.seek(max(0, file.stat().st_size - TAIL))
            lines = rows.read().split(b"\n")[:-1]
        return json.loads(lines[-1])["step"] if lines else 0

    def save_checkpoint(self, step: int, state: dict[str, Any]) -> None:
        """Save each rank's state. Every rank must call it.

        Rows are on disk first, then the states, each with its digest; the folder is renamed last.
        """
        import torch

        folder = self.checkpoints / f"step_{step:08d}"
        temporary = self.checkpoints / f".{folder.name}.partial"
        if self.world.leads:
            for name in ROWS:
                with open(self.path / name, "ab") as rows:
                    os.fsync(rows.fileno())
            for stale in (temporary, folder):
                shutil.rmtree(stale, ignore_errors=True)
            temporary.mkdir()
        self.world.barrier()
        buffer = io.BytesIO()
        torch.save(state, buffer)
        file, digest = self._state_files(temporary)
        write_atomic(file, buffer.getvalue())
        write_atomic(digest, hashlib.sha256(buffer.getvalue()).hexdigest().encode())
        self.world.barrier()
        if self.world.leads:
            os.replace(temporary, folder)
            sync_folder(self.checkpoints)
            for old in self._checkpoint_folders()[CHECKPOINTS_KEPT:]:
                shutil.rmtree(old)

    def load_checkpoint(self) -> tuple[dict[str, Any] | None, list[str]]:
        """This rank's part of the newest state that is whole, and the names of damaged ones.

        The state is None if there is none. Every rank must call it.
        """
        damaged: list[str] = []
        for folder in self.world.gather(self._checkpoint_folders())[0]:
            state = self._load_state(folder)
            if all(self.world.gather(state is not None)):
                return state, damaged
            damaged.append(folder.name)
        return None, damaged

    def _load_state(self, folder: Path) -> dict[str, Any] | None:
        """This rank's state, or None if it is damaged."""
        import torch

        file, digest = self._state_files(folder)
        if not (file.exists() and digest.exists()):
            return None
        data = file.read_bytes()
        if hashlib.sha256(data).hexdigest() != digest.read_text():
            return None
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)

    def _state_files(self, folder: Path) -> tuple[Path, Path]:
        """This rank's state and its digest."""
        return folder / f"rank_{self.world.rank}.pt", folder / f"rank_{self.world.rank}.sha256"

    def _checkpoint_folders(self) -> list[Path]:
        return sorted(self.checkpoints.glob("step_*"), reverse=True)


def _lock(file: IO[str], kind: int, patience: float) -> bool:
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


def flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {
        key: value
        for name, branch in tree.items()
        for key, value in flat(branch, f"{prefix}.{name}" if prefix else str(name)).items()
    }


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
