"""Files that are written completely or not at all and checked when they are read; locks; and
whether the Hugging Face hub can be asked for other files.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import math
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from rec_experiments.common.errors import UserError, first_line

PARTIAL = ".*.partial"  # pattern of the names of files that are being written
PRIVATE = 0o600  # mode of a file that only its owner may read
ARCHIVE = ".csv.xz"  # suffix of an archive of runs (analysis/results/archive.py)
HUB_PATIENCE = 5.0  # seconds to connect, and to get the first byte
WITHOUT_LOCKS = (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK)  # errors of a file system without locks


def cache_folder() -> Path:
    """REC_EXPERIMENTS_CACHE, or the user's cache folder; in a container without a home folder, one
    in the folder for temporary files."""
    if chosen := os.environ.get("REC_EXPERIMENTS_CACHE"):
        return Path(chosen)
    home = os.path.expanduser("~")
    if not os.path.isabs(home):
        return Path(tempfile.gettempdir(), f"rec_experiments-{os.getuid()}")
    return Path(home, ".cache", "rec_experiments")


@contextlib.contextmanager
def atomic(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file that appears under its name, synced, once the block has ended without an error. It is
    written next to `path`. mode: before the umask."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.partial")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:  # on a full disk, status.json needs the space
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_atomic(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write to a temporary name next to `path`, sync, rename. mode: before the umask."""
    with atomic(path, mode) as file:
        file.write(data)


@contextlib.contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn an OSError into a UserError that names the file or folder which a user asked for."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from error


def write_out(out: Path, data: bytes) -> None:
    """Write the file of a user's `--out FILE`. Raises UserError if that is not possible."""
    with writing(out):
        write_atomic(out, data)


def write_with_digest(path: Path, data: bytes) -> None:
    """As `write_atomic`, with a digest next to it for `read_whole`."""
    write_atomic(path, data)
    write_digest(path)


def write_digest(path: Path) -> None:
    """Write the digest of a file next to it, for `is_whole`."""
    write_atomic(path.with_suffix(".sha256"), _digest(path))


def is_whole(path: Path) -> bool:
    """Whether a file still has the content that `write_digest` found."""
    try:
        return _digest(path) == path.with_suffix(".sha256").read_bytes()
    except OSError:
        return False


def read_whole(path: Path) -> bytes | None:
    """What `write_with_digest` wrote, or None if it is damaged or missing."""
    return path.read_bytes() if is_whole(path) else None


def _digest(path: Path) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest().encode()


def lock(file: IO[Any], kind: int = fcntl.LOCK_EX, patience: float = math.inf) -> bool:
    """Try to lock a file for `patience` seconds. Returns whether it succeeded: always on a file
    system without locks, with a line on stderr: nothing stops two processes there."""
    end = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.05)
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
            print(f"{file.name}: its file system has no locks; start one process", file=sys.stderr)
            return True


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@functools.cache
def hub_silence() -> str:
    """Why the Hugging Face hub cannot be asked, or "" if it answers.

    A process asks only once, because libraries retry a silent hub for half a minute per file. If it
    does not answer, this process and its children use only what was fetched before.
    """
    from huggingface_hub import constants, get_session, is_offline_mode

    if is_offline_mode():
        return "HF_HUB_OFFLINE is set, and it has not been fetched before"
    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_PATIENCE)
    except Exception as error:  # of the hub's HTTP library, whichever that is
        os.environ["HF_HUB_OFFLINE"] = "1"
        constants.HF_HUB_OFFLINE = True
        if datasets := sys.modules.get("datasets"):  # has already read the variable
            datasets.config.HF_HUB_OFFLINE = True
        return (
            f"{constants.ENDPOINT} has not answered within {HUB_PATIENCE:g} s "
            f"({first_line(error)}), and it has not been fetched before"
        )
    return ""
