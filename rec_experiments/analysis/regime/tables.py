"""Blocks and targets for people (a terminal, text, Markdown) and for programs (plain values)."""

import dataclasses
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rec_experiments.analysis.regime.quantities import factor
from rec_experiments.analysis.regime.ranges import Expected, Verdict
from rec_experiments.analysis.regime.sections import Block, Cell, Comparison, Section
from rec_experiments.analysis.results.formatting import text_table

WIDTH, HERE = 100, 48  # characters of a line of text, and of one on arms beside published values
PUBLISHED_HEAD = ["published", "where", "range", "here"]
VERDICT_HEAD = ["arm", "target", "here", "should be", ""]


def number(value: float) -> str:
    """With two or three digits that count."""
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if 100 <= abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.2g}" if abs(value) < 1 else f"{value:.3g}"


def cell(value: Cell) -> str:
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return "–".join(map(number, value))
    return number(value)


def shown(expected: Expected, value: float) -> str:
    """A value of its quantity."""
    return number(factor(expected.quantity) * value)


def span(expected: Expected) -> str:
    """Its range in words."""
    ends = (expected.low, expected.high)
    low, high = (None if end is None else shown(expected, end) for end in ends)
    if low is None:
        return f"at most {high}"
    if high is None:
        return f"at least {low}"
    return low if low == high else f"{low} to {high}"


def where(expected: Expected) -> str:
    """At which lags, and in which part of a run."""
    words = []
    if expected.lags:
        first, last = expected.lags
        ends = f"{first} to {last}" if last is not None else f"{first} and more"
        words.append(f"at lag {first}" if first == last else f"at lag {ends}")
    if expected.part:
        words.append(f"at the {expected.part}")
    return ", ".join(words)


def legend(sections: Iterable[Section]) -> list[str]:
    """Whose the published values are, each once."""
    blocks = [block for section in sections for block in section.blocks]
    found = {each.published.name: each.published for b in blocks for each in b.comparisons}
    return [
        f"{name}: {published.setting}. {published.source}; {published.read}, "
        f"{f'checked {published.checked}' if published.checked else 'not checked'}."
        f"{f' {published.note}' if published.note else ''}"
        for name, published in found.items()
    ]


def _published(block: Block) -> list[list[str]]:
    """Rows under PUBLISHED_HEAD."""
    return [
        [
            comparison.published.name,
            where(comparison.published),
            span(comparison.published),
            "; ".join(
                f"{arm} {shown(comparison.published, value)}, {lies}"
                for arm, value, lies in comparison.arms
            ),
        ]
        for comparison in block.comparisons
    ]


def _paragraph(line: str) -> list[str]:
    return textwrap.wrap(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _wrapped(rows: Iterable[list[str]]) -> Iterator[list[str]]:
    """With the last cell over several rows, where it is long."""
    for *first, last in rows:
        begins, *others = textwrap.wrap(last, HERE, break_on_hyphens=False)
        yield [*first, begins]
        yield from ([*[""] * len(first), other] for other in others)


def _head(block: Block) -> list[str]:
    return ["", *block.head]


def _rows(block: Block) -> list[list[str]]:
    return [[name, *map(cell, cells)] for name, cells in block.rows]


def _verdict_cells(verdict: Verdict) -> list[str]:
    """Cells under VERDICT_HEAD."""
    target, value = verdict.target, verdict.value
    said = "met" if verdict.met else "missed" if value is not None else "not measured"
    wish = " (a wish)" if target.wish and not verdict.met else ""
    percent = ", %" if factor(target.quantity) == 100 else ""
    return [
        ", ".join(filter(None, [verdict.arm.name, verdict.arm.section])),
        f"{target.name}{percent}",
        "-" if value is None else shown(target, value),
        span(target),
        said + wish,
    ]


def text(sections: list[Section]) -> str:
    """Plain text, for the file beside a figure and for the report."""
    lines = []
    for section in sections:
        lines += [section.title or "all runs", ""]
        for block in section.blocks:
            lines += [f"  {block.title}"]
            lines += [f"    {line}" for line in text_table([_head(block), *_rows(block)])]
            if block.comparisons:
                table = [PUBLISHED_HEAD, *_wrapped(_published(block))]
                lines += ["", *(f"    {line}" for line in text_table(table))]
            lines.append("")
        if section.unmeasured:
            lines += [*_paragraph(f"  not measured: {'; '.join(section.unmeasured)}"), ""]
    for line in legend(sections):
        lines += _paragraph(line)
    return "\n".join(lines).rstrip() + "\n"


def markdown(sections: list[Section]) -> str:
    lines = ["# Regime", ""]
    for section in sections:
        lines += [f"## {section.title or 'all runs'}", ""]
        for block in section.blocks:
            lines += [f"**{block.title}**", "", *_markdown(_head(block), _rows(block)), ""]
            if block.comparisons:
                lines += [*_markdown(PUBLISHED_HEAD, _published(block)), ""]
        if section.unmeasured:
            lines += [f"Not measured: {'; '.join(section.unmeasured)}.", ""]
    lines += ["## Published values", "", *(f"- {line}" for line in legend(sections))]
    return "\n".join(lines) + "\n"


def markdown_verdicts(verdicts: Iterable[Verdict]) -> str:
    rows = map(_verdict_cells, verdicts)
    return "\n".join(["# Regime, targets", "", *_markdown(VERDICT_HEAD, rows), ""])


def show(console: Console, sections: list[Section]) -> None:
    """Print it."""
    for section in sections:
        console.rule(escape(section.title or "all runs"), align="left")
        for block in section.blocks:
            console.print(f"\n[bold]{escape(block.title)}[/]", highlight=False)
            _show(console, _head(block), _rows(block))
            if block.comparisons:
                _show(console, PUBLISHED_HEAD, _published(block), words=(0, 1, 2, 3), style="dim")
        if section.unmeasured:
            said = f"not measured: {'; '.join(section.unmeasured)}"
            console.print(f"\n{escape(said)}", highlight=False)
        console.print()
    for line in legend(sections):
        console.print(escape(line), style="dim", highlight=False)


def show_verdicts(console: Console, verdicts: Iterable[Verdict]) -> None:
    """Print each target with what was found."""
    _show(console, VERDICT_HEAD, map(_verdict_cells, verdicts), words=(0, 1, 4))


def _show(
    console: Console,
    head: list[str],
    rows: Iterable[list[str]],
    words: tuple[int, ...] = (0,),
    style: str = "",
) -> None:
    """words: the columns that hold no numbers."""
    table = Table(box=None, pad_edge=False, style=style, header_style="dim")
    for place, title in enumerate(head):
        left = place in words
        table.add_column(
            title, justify="left" if left else "right", no_wrap=not left, overflow="fold"
        )
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def _markdown(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    table = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]


def plain(sections: Iterable[Section]) -> list[dict[str, Any]]:
    """As plain values, for JSON. Cells are as shown, a share in %; what is published and the values
    beside it are as in metrics.jsonl."""
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
    published = comparison.published
    return {
        **dataclasses.asdict(published),
        "here": {arm: {"value": value, "lies": lies} for arm, value, lies in comparison.arms},
    }


def plain_verdicts(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Targets as plain values, for JSON."""
    return [
        {
            **dataclasses.asdict(verdict.target),
            "arm": verdict.arm.name,
            "section": verdict.arm.section,
            "value": verdict.value,
            "met": verdict.met,
        }
        for verdict in verdicts
    ]
