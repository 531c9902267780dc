"""What was found in run folders, kept until one of their files changes.

To read, judge and draw a thousand runs takes many seconds. What comes of it follows from the files
of the runs, the code and the question, so it is kept in the cache folder under a digest of these;
of a file, size and time of change stand for what it holds. It is kept as Python keeps compiled
code: reading it may run what is in it. So it lies in a folder that nobody else can write to, or is
not read, and a damaged file counts as absent.
"""

import contextlib
import hashlib
import os
import pickle
import platform
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle

from rec_experiments import cache
from rec_experiments.analysis.results.runs import leave_out, left_out_within
from rec_experiments.files import read_whole, remove, write_with_digest
from rec_experiments.garbage import none_collected
from rec_experiments.runs import code
from rec_experiments.runs.reading import stamp
from rec_experiments.sweeps.compositions import digest_of_code

KEPT = 4  # of one kind
PRIVATE = 0o700  # mode of a folder that nobody else can read or write
SETTLED = 2.0  # seconds: a file that changed later may change again without another time
DRAWING = ("matplotlib", "numpy", "scipy")

Found = TypeVar("Found")


def remembered(
    kind: str, question: Sequence[Any], folders: Iterable[Path], find: Callable[[], Found]
) -> Found:
    """What `find` finds in the run folders, or found before while they were as they are now.

    question: all else that decides it, as plain values. Runs that were left out are named again.
    """
    stamps = [(str(folder), stamp(folder)) for folder in folders]
    asked = repr([digest_of_code(), _versions(), os.getcwd(), *question, *stamps])
    digest = hashlib.sha256(asked.encode()).hexdigest()[:16]
    file = cache.folder() / "remembered" / f"{kind}_{digest}.pickle"
    if (kept := _read(file)) is not None:
        found, reasons = kept
        for reason in reasons:
            leave_out(reason)
        return found
    with left_out_within() as reasons, none_collected():
        found = find()
    changes = [time_ns for _, of_files in stamps for _, time_ns in filter(None, of_files)]
    if max(changes, default=0) < (time.time() - SETTLED) * 1e9:
        _keep(kind, file, cloudpickle.dumps((found, reasons)))
    return found


def _versions() -> list[str | None]:
    python = f"{platform.python_version()} {platform.machine()}"
    running = sorted({*code.PACKAGES, *chain.from_iterable(code.PACKAGES_OF.values())})
    return [python, *map(version, DRAWING), *map(code.release, running)]


def _is_private(folder: Path) -> bool:
    """Whether the folder is this user's, and nobody else can put a file there."""
    with contextlib.suppress(OSError):
        found = folder.lstat()
        return found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == PRIVATE
    return False


def _read(file: Path) -> tuple[Any, list[str]] | None:
    data = read_whole(file) if _is_private(file.parent) else None
    if data is None:
        return None
    with contextlib.suppress(Exception):  # whatever became of it, it is found again
        return pickle.loads(data)
    return None


def _keep(kind: str, file: Path, data: bytes) -> None:
    with contextlib.suppress(OSError):
        cache.folder().mkdir(parents=True, exist_ok=True)
        file.parent.mkdir(mode=PRIVATE, exist_ok=True)
        if not _is_private(file.parent):
            return
        write_with_digest(file, data)
        older = sorted(file.parent.glob(f"{kind}_*.pickle"), key=lambda f: -f.stat().st_mtime_ns)
        for old in older[KEPT:]:
            remove(old)
            remove(old.with_suffix(".sha256"))
