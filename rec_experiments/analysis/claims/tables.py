"""Verdicts for people (text, Markdown, a terminal) and for programs (plain values)."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rec_experiments.analysis.claims.decision import Outcome, Range
from rec_experiments.analysis.claims.verdict import Finding, Verdict
from rec_experiments.analysis.results.formatting import text_table
from rec_experiments.analysis.results.statistics import Statistic

Verdicts = Mapping[str, list[Verdict]]  # by scale

VERDICT_HEAD = ["claim", "verdict", "seeds", "figures"]
HEAD = ["part", "statistic", "mean [95 %]", "IQM", "P", "should be", "seeds", "outcome"]
READING = (
    "mean [95 %]: mean over seeds and its t interval. Two arms are compared seed by seed; of a "
    "ratio (/) it is the geometric mean",
    "IQM: the mean without the lowest and the highest quarter of the seeds",
    "P: probability of improvement, the share of all pairs of a seed of the first arm and one of "
    "the second in which the first has the higher number; a tie counts half",
    "supported: the whole interval lies in the range. contradicted: all of it lies outside, at the "
    "level 1 − 5 % / (number of parts), so that a claim of many parts is not contradicted by "
    "chance. undecided: neither. not run: there is no finished run",
    "A claim is contradicted if a part is, else not run if a part is, else undecided if a part is, "
    "else supported",
)


def heading(verdict: Verdict) -> list[str]:
    """Cells under VERDICT_HEAD."""
    claim = verdict.claim
    return [claim.id, verdict.title, verdict.seeds, ", ".join(claim.figures)]


def summary(found: Verdicts) -> tuple[list[str], list[list[str]]]:
    """Head and rows of all verdicts: one line a claim, one column a scale."""
    head = ["claim", *found, "seeds", "figures"]
    rows = [
        [
            each[0].claim.id,
            *(verdict.name for verdict in each),
            ", ".join(dict.fromkeys(verdict.seeds for verdict in each)),
            ", ".join(each[0].claim.figures),
        ]
        for each in zip(*found.values(), strict=True)
    ]
    return head, rows


def remarks(verdict: Verdict) -> list[str]:
    """The claim in words and in the paper's, the verdict with its reasons, a note, and
    which runs it is from."""
    claim = verdict.claim
    found = [f"{claim.says}.", verdict.sentence, claim.quote, claim.note, *verdict.notes]
    return [line for line in found if line]


def cells(finding: Finding) -> list[str]:
    """Cells under HEAD."""
    check = finding.check
    undecided = finding.outcome is Outcome.undecided
    return [
        f"{check.says}: {finding.arms}",
        f"{check.statistic.name} of {check.metric}",
        number(finding),
        _short(finding.interquartile_mean),
        _short(finding.improvement),
        str(check.range),
        str(len(finding.seeds)),
        finding.outcome.value + (f": {finding.why}" if undecided else ""),
    ]


def number(finding: Finding) -> str:
    interval = finding.interval
    return _short(finding.mean) + (f" [{interval[0]:.3g}, {interval[1]:.3g}]" if interval else "")


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


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
        lines += [f"  {line}" for line in text_table(table)] + [""]
    ranges, statistics = legend(verdicts)
    lines += [f"{each}." for each in READING]
    lines += [f"{each}  {each.name}: {each.reason}." for each in ranges]
    lines += [f"{each.name}  {each.meaning}" for each in statistics]
    return "\n".join(lines) + "\n"


def markdown(found: Verdicts) -> str:
    """A report: all verdicts, the parts of each at each scale, the reasons of the thresholds."""
    lines = ["# Claims", "", *_markdown(*summary(found)), ""]
    lines += [f"- {line}." for line in READING] + [""]
    for scale, verdicts in found.items():
        lines += [f"## Scale {scale}", ""]
        for verdict in verdicts:
            lines += [f"### {verdict.claim.id}", ""]
            lines += [line for remark in remarks(verdict) for line in (remark, "")]
            lines += [*_markdown(HEAD, map(cells, verdict.findings)), ""]
    ranges, statistics = legend(each for verdicts in found.values() for each in verdicts)
    lines += ["## Thresholds", ""]
    lines += _markdown(["name", "range", "reason"], ([r.name, str(r), r.reason] for r in ranges))
    lines += ["", "## Statistics", ""]
    lines += _markdown(["name", "of one run"], ([s.name, s.meaning] for s in statistics))
    return "\n".join(lines) + "\n"


def _markdown(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    table = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table]


def show(console: Console, found: Verdicts) -> None:
    """Print all verdicts with their parts, the reasons of the thresholds, and a summary."""
    for verdicts in found.values():
        for verdict in verdicts:
            for remark in remarks(verdict):
                console.print(remark, markup=False, highlight=False)
            _show(console, HEAD, map(cells, verdict.findings), whole=(2, 5, 6))
    ranges, statistics = legend(each for verdicts in found.values() for each in verdicts)
    console.print("[bold]thresholds[/]")
    _show(console, ["name", "range", "reason"], ([r.name, str(r), r.reason] for r in ranges))
    console.print("[bold]statistics of one run[/]")
    _show(console, ["name", "meaning"], ([s.name, s.meaning] for s in statistics))
    console.print("[bold]how to read it[/]")
    for line in READING:
        console.print(f"{line}.", markup=False, highlight=False)
    console.print("\n[bold]verdicts[/]")
    _show(console, *summary(found))


def _show(
    console: Console, head: list[str], rows: Iterable[list[str]], whole: tuple[int, ...] = ()
) -> None:
    """whole: the columns whose cells stay on one line."""
    table = Table(box=None, pad_edge=False)
    for place, title in enumerate(head):
        table.add_column(escape(title), no_wrap=place in whole, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)
    console.print()


def plain(verdict: Verdict) -> dict[str, Any]:
    """As plain values, for JSON."""
    claim = verdict.claim
    return {
        "claim": claim.id,
        "scale": verdict.scale,
        "verdict": verdict.outcome.value,
        "seeds": verdict.fewest_seeds,
        "claim_seeds": verdict.claim_seeds,
        "reasons": verdict.reasons,
        "says": claim.says,
        "quote": claim.quote,
        "figures": list(claim.figures),
        "needs": claim.needs,
        "note": claim.note,
        "runs": verdict.notes,
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
        "interquartile_mean": finding.interquartile_mean,
        "probability_of_improvement": finding.improvement,
        "seeds": finding.seeds,
        "low": _end(check.range.low),
        "high": _end(check.range.high),
        "threshold": check.range.name,
        "reason": check.range.reason,
        "outcome": finding.outcome.value,
        "why": finding.why,
    }


def _end(value: float) -> float | None:
    return None if math.isinf(value) else value
