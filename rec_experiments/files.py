"""Writing files that are whole or absent, and telling whether they still are; reading nothing else
than files."""

import contextlib
import errno
import hashlib
import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

PARTIAL = ".*.partial"  # pattern of names of files that are being written
PRIVATE = 0o600  # mode of a file for its owner alone


@contextlib.contextmanager
def atomic(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file that is there, under its name and synced, once the block has ended without an error.

    It is written beside `path`, under a name that cannot be guessed and is always a new file:
    nobody can lay a link there. mode: before the umask.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:  # as on a full disk, which needs the room for status.json
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_atomic(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write to a temporary name beside `path`, sync, rename. mode: before the umask."""
    with atomic(path, mode) as file:
        file.write(data)


def write_with_digest(path: Path, data: bytes) -> None:
    """As `write_atomic`, with a digest beside it for `read_whole` and `is_whole`."""
    stream_with_digest(path, lambda file: file.write(data))


def stream_with_digest(
    path: Path, write: Callable[[Any], object], given_up: Callable[[], bool] = lambda: False
) -> None:
    """As `write_with_digest`, of what `write` writes into the file that it is given, piece by
    piece, so that the whole is never in memory. Once `given_up` says so, no more is written, and
    OSError is raised."""
    with atomic(path) as file:
        counted = _Digesting(file, given_up)
        write(counted)
        if counted.error:
            raise counted.error
    write_atomic(_digest_file(path), counted.digest.hexdigest().encode())


class _Digesting:
    """A file that takes the digest of what is written. An error is kept for the end: torch, which
    writes on until then, would replace it by one of its own."""

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
        """The file is flushed at its end."""


def open_regular(path: Path) -> BufferedReader:
    """A file to be read. Raises OSError for what is none, such as a pipe, whose reader would wait
    for somebody to write."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = open(descriptor, "rb")  # noqa: SIM115 (for whoever reads it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError("it is no regular file")
    return file


def no_link(name: str, flags: int) -> int:
    """An opener for a file to be written: no link, through which another file would be, and no pipe
    that waits for a reader."""
    return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def read_regular(path: Path) -> bytes:
    """What is in it. Raises OSError as `open_regular` does."""
    with open_regular(path) as file:
        return file.read()


def read_whole(path: Path) -> bytes | None:
    """What `write_with_digest` wrote, or None if it is damaged or not there."""
    try:
        data, digest = read_regular(path), read_regular(_digest_file(path))
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest().encode() == digest else None


def is_whole(path: Path) -> bool:
    """Whether `read_whole` would return it. Reads it piece by piece."""
    try:
        with open_regular(path) as file:
            found = hashlib.file_digest(file, "sha256").hexdigest().encode()
        return found == read_regular(_digest_file(path))
    except OSError:
        return False


def _digest_file(path: Path) -> Path:
    return path.with_suffix(".sha256")


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it, if it is there."""
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
