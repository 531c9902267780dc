"""Local data files: one JSON object a line, checked so that a bad one is named."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from rec_experiments.types import UserError

Row = Mapping[str, str]


def read(path: Path, fields: Sequence[str]) -> list[Row]:
    """The rows of a .jsonl file. Empty lines are skipped.

    Raises UserError that names the file, and the line and field where it applies: unreadable file,
    a line that is no JSON object, a field that is missing or no text, no row at all.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {_reason(error)}") from None
    rows = [
        check(_parse(line, f"{path} line {number}"), fields, f"{path} line {number}")
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not rows:
        raise UserError(f"{path}: holds no data; one JSON object a line is expected")
    return rows


def check(row: object, fields: Sequence[str], where: str) -> Row:
    """The row, if it is an object with a text in each field. Raises UserError that says `where`."""
    if not isinstance(row, dict):
        raise UserError(f"{where}: a JSON object is expected, with the fields {', '.join(fields)}")
    for name in fields:
        if not isinstance(row.get(name), str):
            problem = "is not text" if name in row else f"is missing; found {', '.join(row)}"
            raise UserError(f"{where}: field {name!r} {problem}")
    return row


def _parse(line: str, where: str) -> object:
    try:
        return json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not valid JSON: {error}") from None


def _reason(error: OSError | UnicodeDecodeError) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "not UTF-8 text"
