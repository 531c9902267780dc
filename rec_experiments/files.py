"""Writing files that are whole or absent, and telling whether they still are."""

import contextlib
import hashlib
import os
import secrets
import shutil
from pathlib import Path

PARTIAL = ".*.partial"  # pattern of names of files that are being written
PRIVATE = 0o600  # mode of a file for its owner alone


def write_atomic(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write to a temporary name beside `path`, sync, rename. mode: before the umask.

    The name cannot be guessed and is always a new file: nobody can lay a link there.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:  # as on a full disk, which needs the room for status.json
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_with_digest(path: Path, data: bytes) -> None:
    """As `write_atomic`, with a digest beside it for `read_whole`."""
    write_atomic(path, data)
    write_atomic(_digest_file(path), hashlib.sha256(data).hexdigest().encode())


def read_whole(path: Path) -> bytes | None:
    """What `write_with_digest` wrote, or None if it is damaged or not there."""
    try:
        data, digest = path.read_bytes(), _digest_file(path).read_bytes()
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest().encode() == digest else None


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
