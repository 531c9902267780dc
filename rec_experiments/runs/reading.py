"""Reading the files of a run folder.

For a damaged file every function raises UserError that names the folder, the file, the damage and
a remedy.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import from_json

from rec_experiments.common.errors import UserError, first_line

Row = dict[str, Any]  # one line of a JSON Lines file; it has a `step`

TAIL = 1 << 16  # bytes; more than a row of metrics
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is faster, if installed

REMEDIES = {
    "config.yaml": "restore it, or choose another run_dir",
    "status.json": "remove it, and the same command resumes from the newest checkpoint",
    "provenance.json": "remove it; the run then has no provenance",
    "metrics.jsonl": "restore it, or repeat the run in another folder",
    "samples.jsonl": "remove it; no number of the run depends on it",
}


def read_object(file: Path) -> dict[str, Any]:
    """The object in a JSON or YAML file, or {} if there is no file."""
    with _damage_named(file):
        if not file.exists():
            return {}
        text = file.read_bytes().decode()
        if file.suffix == ".yaml" and "&" in text and _has_alias(text):
            raise ValueError("it has an alias, which no run writes")
        value = yaml.load(text, LOADER) if file.suffix == ".yaml" else json.loads(text)
        if not isinstance(value, dict):
            raise ValueError("it is no object")
        return value


def _has_alias(text: str) -> bool:
    """Aliases of aliases stand for more than memory holds."""
    return any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, LOADER))


def read_rows(file: Path) -> list[tuple[bytes, Row]]:
    """The lines of a JSON Lines file of rows, each as bytes and as the row; [] if there is no file.

    An incomplete last line is dropped: a process was killed while it wrote it.
    """
    with _damage_named(file):
        lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
        rows = [*map(_row, lines)]
        if rows and rows[-1] is None:
            rows.pop()
        if None in rows:
            raise ValueError(f"line {rows.index(None) + 1} is damaged")
        return [(line, row) for line, row in zip(lines, rows, strict=False) if row is not None]


def last_row(path: Path) -> Row | None:
    """The last complete row of a JSON Lines file, or None if there is none in its last TAIL bytes,
    or no file."""
    with _damage_named(path):
        if not path.exists():
            return None
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read().split(b"\n")[:-1]
    return next((row for row in map(_row, reversed(lines)) if row is not None), None)


def _row(line: bytes) -> Row | None:
    """The row on a line, None if it is damaged. pydantic's parser is faster, but stricter than
    json, which decides."""
    try:
        row = from_json(line)
    except ValueError:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return None
    return row if isinstance(row, dict) and type(row.get("step")) is int else None


@contextlib.contextmanager
def _damage_named(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise unreadable(file, first_line(error)) from None


Stamp = tuple[tuple[int, int] | None, ...]  # of each file: size in bytes, change time in ns


def stamp(folder: Path) -> Stamp:
    """Sizes and change times of a run's files, None for a missing one: equal if nothing changed."""
    found: list[tuple[int, int] | None] = []
    for name in REMEDIES:
        try:
            status = os.stat(folder / name)
            found.append((status.st_size, status.st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)


def unreadable(file: Path, reason: str) -> UserError:
    """The error for a file that cannot be read, with its remedy."""
    return UserError(
        f"run folder {file.parent}: {file.name} cannot be read ({reason}); {REMEDIES[file.name]}"
    )
