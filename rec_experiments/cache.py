"""The user's cache folder: what takes long to make, and can be made again at any time."""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FILES_KEPT = 4  # of one kind; the older ones are of code and configurations that have changed


def folder() -> Path:
    """REC_EXPERIMENTS_CACHE, or the user's cache folder."""
    default = Path.home() / ".cache" / "rec_experiments"
    return Path(os.environ.get("REC_EXPERIMENTS_CACHE", default))


class Kept:
    """Plain values by key, in a file of the cache folder that has a line for each.

    kind: of the values. version: of all that decides them besides their key. A damaged line counts
    as absent, and so does everything where the folder cannot be read or written.
    """

    def __init__(self, kind: str, version: str):
        self.kind, self.file = kind, folder() / f"{kind}_{version}.jsonl"
        self.values = dict(self._read())

    def add(self, key: str, value: Any) -> None:
        """Keep a value for this and later processes, if JSON holds it as it is."""
        self.values[key] = value
        line = json.dumps([key, value]).encode()
        if json.loads(line) != [key, value]:
            return
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.file, "ab") as file:
                if not file.tell():
                    self._remove_old()
                file.write(_digest(line) + b" " + line + b"\n")

    def _read(self) -> Iterator[tuple[str, Any]]:
        lines: list[bytes] = []
        with contextlib.suppress(OSError):
            lines = self.file.read_bytes().split(b"\n")
        for digest, _, line in (each.partition(b" ") for each in lines):
            if digest == _digest(line):
                yield json.loads(line)

    def _remove_old(self) -> None:
        files = self.file.parent.glob(f"{self.kind}_*.jsonl")
        for old in sorted(files, key=lambda file: -file.stat().st_mtime_ns)[FILES_KEPT:]:
            old.unlink()


def _digest(line: bytes) -> bytes:
    return hashlib.sha256(line).hexdigest()[:16].encode()
