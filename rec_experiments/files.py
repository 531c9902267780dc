"""Writing files that are whole or absent."""

import os
from pathlib import Path


def write_atomic(path: Path, data: bytes) -> None:
    """Write to a temporary name beside `path`, sync, rename."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:  # as on a full disk, which needs the room for status.json
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
