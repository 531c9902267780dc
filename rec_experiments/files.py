"""Files that are written completely or not at all and checked when they are read; and whether the
Hugging Face hub can be asked for other files.
"""

import contextlib
import errno
import functools
import hashlib
import json
import os
import secrets
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from rec_experiments.errors import UserError, first_line

Row = dict[str, Any]  # one line of a JSON Lines file; it has a `step`

PARTIAL = ".*.partial"  # pattern of the names of files that are being written
PRIVATE = 0o600  # mode of a file that only its owner may read
ARCHIVE = ".csv.xz"  # suffix of an archive of runs (analysis/results/archive.py)
HUB_PATIENCE = 5.0  # seconds to connect, and to get the first byte


def cache_folder() -> Path:
    """REC_EXPERIMENTS_CACHE, or the user's cache folder. Raises OSError without a home folder."""
    if chosen := os.environ.get("REC_EXPERIMENTS_CACHE"):
        return Path(chosen)
    home = Path("~").expanduser()
    if not home.is_absolute():
        raise OSError("no home folder is known: set REC_EXPERIMENTS_CACHE to a folder")
    return home / ".cache" / "rec_experiments"


@contextlib.contextmanager
def atomic(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file that appears under its name, synced, once the block has ended without an error.

    It is written next to `path`, under a new random name, so that nobody can place a link there.
    mode: before the umask.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, mode), "wb") as file:
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
    """As `write_atomic`, with a digest next to it for `read_whole` and `is_whole`."""
    stream_with_digest(path, lambda file: file.write(data))


def stream_with_digest(
    path: Path, write: Callable[[Any], object], given_up: Callable[[], bool] = lambda: False
) -> None:
    """As `write_with_digest`, for data that `write` writes into the file it is given, piece by
    piece, so that memory never holds all of it. Raises OSError once `given_up` returns True."""
    with atomic(path) as file:
        counted = _Digesting(file, given_up)
        write(counted)
        if counted.error:
            raise counted.error
    write_atomic(_digest_file(path), counted.digest.hexdigest().encode())


class _Digesting:
    """A file that digests what is written. It keeps an error for the end: torch continues to write
    after one, and would replace it by an error of its own."""

    def __init__(self, file: BinaryIO, given_up: Callable[[], bool]):
        self.file, self.given_up, self.digest = file, given_up, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        if self.error is None:
            try:
                if self.given_up():
                    raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
                self.file.write(data)
                self.digest.update(data)
            except OSError as error:
                self.error = error
        return memoryview(data).nbytes

    def flush(self) -> None:
        """`atomic` flushes the file at its end."""


def open_regular(path: Path) -> BufferedReader:
    """Open a file for reading. Raises OSError for anything but a regular file: opening a pipe would
    block until somebody writes to it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = open(descriptor, "rb")  # noqa: SIM115 (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError("it is no regular file")
    return file


def no_link(name: str, flags: int) -> int:
    """An opener for writing, which follows no link and waits for no pipe: several users may share
    the folder."""
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def read_regular(path: Path) -> bytes:
    """The content of a file. Raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def read_rows(path: Path) -> list[tuple[bytes, Row]]:
    """The lines of a JSON Lines file of rows, each as bytes and as the row.

    An incomplete last line is dropped: a process was killed while it wrote it. Raises ValueError
    for any other damaged line and OSError as `open_regular` does.
    """
    lines = read_regular(path).split(b"\n")[:-1]
    rows = [*map(_row, lines)]
    if rows and rows[-1] is None:
        rows.pop()
    if None in rows:
        raise ValueError(f"line {rows.index(None) + 1} is damaged")
    return [(line, row) for line, row in zip(lines, rows, strict=False) if row is not None]


def last_row(path: Path, tail: int) -> Row | None:
    """The last complete row within the last `tail` bytes, or None."""
    with open_regular(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - tail))
        lines = file.read().split(b"\n")[:-1]
    return next((row for row in map(_row, reversed(lines)) if row is not None), None)


def _row(line: bytes) -> Row | None:
    """The row on a line, None if it is damaged. pydantic's parser is faster, but stricter than
    json, which decides."""
    from pydantic_core import from_json

    try:
        row = from_json(line)
    except ValueError:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return None
    return row if isinstance(row, dict) and type(row.get("step")) is int else None


def read_whole(path: Path) -> bytes | None:
    """What `write_with_digest` wrote, or None if it is damaged or missing."""
    try:
        data, digest = read_regular(path), read_regular(_digest_file(path))
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest().encode() == digest else None


def is_whole(path: Path) -> bool:
    """Whether `read_whole` would return the data. Reads the file piece by piece."""
    try:
        with open_regular(path) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest().encode()
        return found == read_regular(_digest_file(path))
    except OSError:
        return False


def _digest_file(path: Path) -> Path:
    return path.with_suffix(".sha256")


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
