"""The files of a run folder, read so that a damaged one is told in one line.

Each reader raises UserError that names the folder, the file, what is wrong, and what to do.
"""

import json
import os
from pathlib import Path
from typing import Any

import yaml

from rec_experiments.errors import UserError, first_line
from rec_experiments.files import open_regular, read_regular

Row = dict[str, Any]

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where there is one, is quicker

REMEDIES = {
    "config.yaml": "put it back as it was, or choose another run_dir",
    "status.json": "remove it, and the same command goes on from the newest checkpoint",
    "provenance.json": "remove it, and the run counts as made by unknown code",
    "metrics.jsonl": "put it back as it was, or make the run again in another folder",
    "samples.jsonl": "remove it: no number of the run depends on it",
}


def read_object(file: Path) -> dict[str, Any]:
    """The object in a JSON or YAML file; {} if there is no file."""
    try:
        text = read_regular(file).decode()
        value = yaml.load(text, LOADER) if file.suffix == ".yaml" else json.loads(text)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise unreadable(file, first_line(error)) from None
    if not isinstance(value, dict):
        raise unreadable(file, "it holds no object")
    return value


def read_rows(file: Path) -> list[tuple[bytes, Row]]:
    """The whole lines of a JSON Lines file, as they stand there and what they hold.

    Left out is a last line that a process did not live to write. Every other one has its step.
    """
    try:
        lines = read_regular(file).split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(file, first_line(error)) from None
    rows = [*map(_row, lines)]
    if rows and rows[-1] is None:
        rows.pop()
    if None in rows:
        raise unreadable(file, f"line {rows.index(None) + 1} is damaged")
    return [(line, row) for line, row in zip(lines, rows, strict=False) if row is not None]


Stamp = tuple[tuple[int, int] | None, ...]  # of each file of a run: bytes, time of change in ns


def stamp(folder: Path) -> Stamp:
    """What tells the files of a run from what they were, without reading them; None for none."""
    found: list[tuple[int, int] | None] = []
    for name in REMEDIES:
        try:
            status = os.stat(folder / name)
            found.append((status.st_size, status.st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)


def last_row(file: Path, tail: int) -> Row | None:
    """The last whole line among the last `tail` bytes, or None."""
    try:
        with open_regular(file) as rows:
            rows.seek(max(0, os.fstat(rows.fileno()).st_size - tail))
            lines = rows.read().split(b"\n")[:-1]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(file, first_line(error)) from None
    return next((row for row in map(_row, reversed(lines)) if row is not None), None)


def _row(line: bytes) -> Row | None:
    """What a line holds; None if it is damaged. The quicker parser is stricter than json, which
    has the last word."""
    from pydantic_core import from_json

    try:
        row = from_json(line)
    except ValueError:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return None
    return row if isinstance(row, dict) and type(row.get("step")) is int else None


def unreadable(file: Path, reason: str) -> UserError:
    """That a file cannot be read, and what to do."""
    return UserError(
        f"run folder {file.parent}: {file.name} cannot be read ({reason}); {REMEDIES[file.name]}"
    )
