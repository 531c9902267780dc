"""Tables as text, Markdown and terminal output, and values as JSON."""

import json
from collections.abc import Container, Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table


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


def print_table(
    console: Console, head: list[str], rows: Iterable[list[str]], numbers: Container[int] = ()
) -> None:
    """Print a table. numbers: columns that are right-aligned and never wrapped."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for place, title in enumerate(head):
        number = place in numbers
        table.add_column(
            escape(title),
            justify="right" if number else "left",
            no_wrap=number,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def to_json(value: Any) -> bytes:
    """The content of a JSON file. Raises ValueError for a number that is not finite."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
