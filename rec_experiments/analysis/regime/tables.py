"""Sections as text and as plain values."""

import dataclasses
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from rec_experiments.analysis.regime.quantities import factor
from rec_experiments.analysis.regime.ranges import ExpectedRange, Range
from rec_experiments.analysis.regime.sections import Block, Cell, Comparison, Section
from rec_experiments.analysis.results.formatting import text_table

WIDTH, HERE = 100, 48  # characters of a line of text, and of the column of our values
PUBLISHED_HEAD = ["published", "where", "range", "here"]


def number(value: float) -> str:
    """With two or three significant digits."""
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if 100 <= abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.2g}" if abs(value) < 1 else f"{value:.3g}"


def cell(value: Cell) -> str:
    if value is None:
        return "-"
    return "–".join(map(number, value)) if isinstance(value, tuple) else number(value)


def shown(expected: Range, value: float) -> str:
    """A value of the quantity, in per cent if it is shown so."""
    return number(factor(expected.quantity) * value)


def span(expected: Range) -> str:
    """The range, as in `at most 0.1` or `0.01 to 0.1`."""
    ends = (expected.low, expected.high)
    low, high = (None if end is None else shown(expected, end) for end in ends)
    if low is None:
        return f"at most {high}"
    if high is None:
        return f"at least {low}"
    return low if low == high else f"{low} to {high}"


def where(expected: ExpectedRange) -> str:
    """The lags and the part of the run, as in `at lag 1 to 3, at the end`."""
    words = []
    if expected.lags:
        first, last = expected.lags
        ends = f"{first} to {last}" if last is not None else f"{first} and more"
        words.append(f"at lag {first}" if first == last else f"at lag {ends}")
    if expected.part:
        words.append(f"at the {expected.part}")
    return ", ".join(words)


def legend(sections: Iterable[Section]) -> list[str]:
    """Setting and source of the published values in use, each once."""
    blocks = [block for section in sections for block in section.blocks]
    found = {each.published.name: each.published for b in blocks for each in b.comparisons}
    return [
        f"{name}: {published.setting}. {published.source}; {published.read}, "
        f"{f'checked {published.checked}' if published.checked else 'not checked'}."
        f"{f' {published.note}' if published.note else ''}"
        for name, published in found.items()
    ]


def _block_table(block: Block) -> list[list[str]]:
    return [["", *block.head], *([name, *map(cell, cells)] for name, cells in block.rows)]


def _published_rows(block: Block) -> list[list[str]]:
    """Rows under PUBLISHED_HEAD."""
    return [
        [
            comparison.published.name,
            where(comparison.published),
            span(comparison.published),
            "; ".join(
                f"{arm} {shown(comparison.published, value)}, {place}"
                for arm, value, place in comparison.arms
            ),
        ]
        for comparison in block.comparisons
    ]


def _wrapped(rows: Iterable[list[str]]) -> Iterator[list[str]]:
    """The rows, with a long last cell continued in the rows below."""
    for *first, last in rows:
        begins, *others = textwrap.wrap(last, HERE, break_on_hyphens=False)
        yield [*first, begins]
        yield from ([*[""] * len(first), other] for other in others)


def _paragraph(line: str) -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def text(sections: list[Section]) -> str:
    """Plain text, for a terminal, the file beside a figure, and the report."""
    lines = []
    for section in sections:
        lines += [section.title or "all runs", ""]
        for block in section.blocks:
            lines += [f"  {block.title}"]
            lines += [f"    {line}" for line in text_table(_block_table(block))]
            if block.comparisons:
                table = [PUBLISHED_HEAD, *_wrapped(_published_rows(block))]
                lines += ["", *(f"    {line}" for line in text_table(table))]
            lines.append("")
        if section.unmeasured:
            lines += [*_paragraph(f"  not measured: {'; '.join(section.unmeasured)}"), ""]
    for line in legend(sections):
        lines += _paragraph(line)
    return "\n".join(lines).rstrip() + "\n"


def plain(sections: Iterable[Section]) -> list[dict[str, Any]]:
    """Sections as plain values, for JSON. Cells are as shown, shares in per cent; published values
    and ours beside them have the units of metrics.jsonl."""
    return [
        {
            "section": section.title,
            "blocks": [
                {
                    "title": block.title,
                    "columns": block.head,
                    "arms": dict(block.rows),
                    "published": [_plain(comparison) for comparison in block.comparisons],
                }
                for block in section.blocks
            ],
            "unmeasured": section.unmeasured,
        }
        for section in sections
    ]


def _plain(comparison: Comparison) -> dict[str, Any]:
    return {
        **dataclasses.asdict(comparison.published),
        "here": {arm: {"value": value, "place": place} for arm, value, place in comparison.arms},
    }
