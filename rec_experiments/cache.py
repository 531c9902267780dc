"""Values kept in the cache folder."""

import hashlib
import os

from rec_experiments.files import cache_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from typing import Any

FILES_KEPT = 4  # of one kind; the older ones are of code and configurations that have changed
CODE = (".py", ".yaml")


def digest_of_files(folders: "Iterable[str | Path]", also: str) -> str:
    """Of the code and configuration files in these folders, their names there, and of `also`.
    Links to folders are followed."""
    digest = hashlib.sha256(also.encode())
    for root in map(str, folders):
        digest.update(b"folder\n")
        for inside, names, files in os.walk(root, followlinks=True):
            names.sort()
            for name in sorted(files):
                if name.endswith(CODE):
                    path = os.path.join(inside, name)
                    with open(path, "rb", buffering=0) as file:
                        content = file.read()
                    digest.update(f"{path[len(root) :]} {len(content)}\n".encode())
                    digest.update(content)
    return digest.hexdigest()[:16]


class Kept:
    """Plain values by key, in a file of the cache folder that has a line for each.

    kind: of the values. version: of all that decides them besides their key. A damaged line counts
    as absent, and so does everything where the folder cannot be read or written.
    """

    def __init__(self, kind: str, version: str):
        self.kind, self.file = kind, cache_folder() / f"{kind}_{version}.jsonl"
        self.values = dict(self._read())

    def add(self, key: str, value: "Any") -> None:
        """Keep a value for this and later processes, if JSON holds it as it is."""
        import json
        from contextlib import suppress

        self.values[key] = value
        line = json.dumps([key, value]).encode()
        if json.loads(line) != [key, value]:
            return
        with suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with open(self.file, "ab", opener=_strictly) as file:
                if not file.tell():
                    _remove_old(self.kind, self.file.suffix)
                file.write(_digest(line) + b" " + line + b"\n")

    def _read(self) -> "Iterator[tuple[str, Any]]":
        import json
        from contextlib import suppress

        lines: list[bytes] = []
        with suppress(OSError), open(self.file, "rb", opener=_strictly) as file:
            lines = file.read().split(b"\n")
        for digest, _, line in (each.partition(b" ") for each in lines):
            if digest == _digest(line):
                yield json.loads(line)


def _remove_old(kind: str, suffix: str) -> None:
    files = cache_folder().glob(f"{kind}_*{suffix}")
    for old in sorted(files, key=lambda file: -file.stat().st_mtime_ns)[FILES_KEPT:]:
        old.unlink()


def _strictly(name: str, flags: int) -> int:
    """Opens no link, through which another file would be written, and waits for no pipe: several
    users may share the folder."""
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _digest(line: bytes) -> bytes:
    return hashlib.sha256(line).hexdigest()[:16].encode()
