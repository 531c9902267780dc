"""Tables as text and Markdown, and values as JSON."""

import json
from collections.abc import Iterable
from typing import Any


def text_table(rows: list[list[str]]) -> list[str]:
    """One line per row, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def markdown_table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    """The lines of a Markdown table."""
    table = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]


def to_json(value: Any) -> bytes:
    """The content of a JSON file. Raises ValueError for a number that is not finite."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
