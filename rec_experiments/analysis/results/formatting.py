"""Tables as text and Markdown."""

from collections.abc import Iterable
from typing import Any

import pandas


def text_table(rows: list[list[str]]) -> list[str]:
    """One line per row, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def readable(table: pandas.DataFrame) -> list[str]:
    """The table as text. The columns NAME, NAME_low and NAME_high are one, as in
    `0.49 [0.45, 0.53]`; a number that is not known is `-`."""
    heads = [head for head in table if not head.endswith(("_low", "_high"))]
    rows = table.to_dict("records")
    return text_table([heads, *([_with_ends(row, head) for head in heads] for row in rows)])


def _with_ends(row: dict[str, Any], head: str) -> str:
    low, high = row.get(f"{head}_low"), row.get(f"{head}_high")
    ends = "" if low is None or pandas.isna(low) else f" [{low:.3g}, {high:.3g}]"
    value = row[head]
    if not isinstance(value, float):
        return str(value)
    return "-" if pandas.isna(value) else f"{value:.3g}{ends}"


def markdown_table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    """The lines of a Markdown table."""
    table = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]
