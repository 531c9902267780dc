"""Verdicts for people (text, Markdown, a terminal) and for programs (plain values)."""

import math
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rec_experiments.claims.engine import Finding, Outcome, Range, Verdict
from rec_experiments.results.statistics import Statistic
from rec_experiments.results.tables import columns_of_text

VERDICT_HEAD = ["claim", "verdict", "seeds", "figures"]
HEAD = ["part", "statistic", "mean [95 %]", "should be", "seeds", ""]
MARKS = {Outcome.supported: "yes", Outcome.not_supported: "no", Outcome.not_enough_data: "?"}


def heading(verdict: Verdict) -> list[str]:
    """Cells under VERDICT_HEAD."""
    claim = verdict.claim
    return [claim.id, verdict.title, str(verdict.seeds), ", ".join(claim.figures)]


def remarks(verdict: Verdict) -> list[str]:
    """The claim in words, the verdict with its reasons, a note, and who made runs otherwise."""
    claim = verdict.claim
    return [f"{claim.says}.", verdict.sentence, *filter(None, [claim.note]), *verdict.makers]


def cells(finding: Finding) -> list[str]:
    """Cells under HEAD."""
    check = finding.check
    return [
        f"{check.says}: {finding.arms}",
        f"{check.statistic.name} of {check.metric}",
        number(finding),
        str(check.range),
        str(len(finding.seeds)),
        MARKS[finding.outcome],
    ]


def number(finding: Finding) -> str:
    if finding.mean is None:
        return "-"
    interval = finding.interval
    return f"{finding.mean:.3g}" + (f" [{interval[0]:.3g}, {interval[1]:.3g}]" if interval else "")


def legend(verdicts: Iterable[Verdict]) -> tuple[list[Range], list[Statistic]]:
    """Thresholds and statistics in use, each once."""
    checks = [finding.check for verdict in verdicts for finding in verdict.findings]
    ranges = list(dict.fromkeys(check.range for check in checks))
    return ranges, list(dict.fromkeys(check.statistic for check in checks))


def text(verdicts: list[Verdict]) -> str:
    """Plain text, for the file beside a figure."""
    lines = []
    for verdict in verdicts:
        lines += remarks(verdict)
        table = [HEAD, *map(cells, verdict.findings)]
        lines += [f"  {line}" for line in columns_of_text(table)] + [""]
    ranges, statistics = legend(verdicts)
    lines += [f"{each}  {each.name}: {each.reason}." for each in ranges]
    lines += [f"{each.name}  {each.meaning}" for each in statistics]
    return "\n".join(lines) + "\n"


def markdown(verdicts: list[Verdict]) -> str:
    """A report: all verdicts, the parts of each, the reasons of the thresholds."""
    ranges, statistics = legend(verdicts)
    lines = ["# Claims", "", *_markdown(VERDICT_HEAD, map(heading, verdicts)), ""]
    for verdict in verdicts:
        lines += [f"## {verdict.claim.id}", ""]
        lines += [line for remark in remarks(verdict) for line in (remark, "")]
        lines += [*_markdown(HEAD, map(cells, verdict.findings)), ""]
    lines += ["## Thresholds", ""]
    lines += _markdown(["name", "range", "reason"], ([r.name, str(r), r.reason] for r in ranges))
    lines += ["", "## Statistics", ""]
    lines += _markdown(["name", "of one run"], ([s.name, s.meaning] for s in statistics))
    return "\n".join(lines) + "\n"


def _markdown(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    table = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]


def show(console: Console, verdicts: list[Verdict]) -> None:
    """Print all verdicts with their parts, then the reasons of the thresholds."""
    for verdict in verdicts:
        for remark in remarks(verdict):
            console.print(remark, markup=False, highlight=False)
        _show(console, HEAD, map(cells, verdict.findings))
    ranges, statistics = legend(verdicts)
    console.print("[bold]thresholds[/]")
    _show(console, ["name", "range", "reason"], ([r.name, str(r), r.reason] for r in ranges))
    console.print("[bold]statistics of one run[/]")
    _show(console, ["name", "meaning"], ([s.name, s.meaning] for s in statistics))
    console.print("[bold]verdicts[/]")
    _show(console, VERDICT_HEAD, map(heading, verdicts))


def _show(console: Console, head: list[str], rows: Iterable[list[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in head:
        table.add_column(title, no_wrap=title in (HEAD[2], HEAD[4], HEAD[5]))
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
    console.print()


def plain(verdict: Verdict) -> dict[str, Any]:
    """As plain values, for JSON."""
    claim = verdict.claim
    return {
        "claim": claim.id,
        "says": claim.says,
        "figures": list(claim.figures),
        "verdict": verdict.outcome.value,
        "scale": verdict.scale,
        "reasons": verdict.reasons,
        "note": claim.note,
        "made_by": verdict.makers,
        "parts": [_plain(finding) for finding in verdict.findings],
    }


def _plain(finding: Finding) -> dict[str, Any]:
    check = finding.check
    return {
        "says": check.says,
        "arms": finding.arms,
        "figures": list(check.figures),
        "metric": check.metric,
        "statistic": check.statistic.name,
        "mean": finding.mean,
        "interval": finding.interval,
        "seeds": finding.seeds,
        "low": _end(check.range.low),
        "high": _end(check.range.high),
        "threshold": check.range.name,
        "reason": check.range.reason,
        "verdict": finding.outcome.value,
    }


def _end(value: float) -> float | None:
    return None if math.isinf(value) else value
