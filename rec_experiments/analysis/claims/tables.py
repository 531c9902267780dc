"""Verdicts as a card, text, Markdown and JSON."""

import math
import textwrap
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Any

from rich.console import Console

from rec_experiments.analysis.claims.decision import Outcome, Range
from rec_experiments.analysis.claims.verdict import Finding, Verdict
from rec_experiments.analysis.results.formatting import markdown_table, text_table
from rec_experiments.analysis.results.statistics import Statistic

Verdicts = Mapping[str, list[Verdict]]  # by scale

WIDTH = 100  # characters in a line of text
VERDICT_HEAD = ["claim", "verdict", "seeds", "figures"]
HEAD = ["part", "statistic", "mean [95 %]", "IQM", "P", "should be", "seeds", "outcome"]
READING = (
    "mean [95 %]: mean over seeds with its t interval. Two arms are compared seed by seed; for a "
    "ratio (/) the mean is geometric",
    "IQM: interquartile mean, without the lowest and the highest quarter of the seeds",
    "P: probability of improvement, the share of pairs of seeds, one of each arm, in which the "
    "first arm has the higher value; a tie counts half",
    "supported: the whole interval lies in the range. contradicted: all of it lies outside, at the "
    "level 1 − 5 % / (number of parts), so that a claim with many parts is not contradicted by "
    "chance. undecided: neither. not run: there is no finished run",
    "A claim is contradicted if any part is, otherwise not run if any part is, otherwise undecided "
    "if any part is, otherwise supported",
)


def heading(verdict: Verdict) -> list[str]:
    """Cells under VERDICT_HEAD."""
    claim = verdict.claim
    return [claim.id, verdict.title, verdict.seeds, ", ".join(claim.figures)]


def summary(found: Verdicts) -> tuple[list[str], list[list[str]]]:
    """Head and rows of a table with one line per claim and one column per scale."""
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


def show(console: Console, found: Verdicts, details: Container[str] = ()) -> None:
    """Print the card, or the claims of which details are wanted."""
    chosen = [each for of_scale in found.values() for each in of_scale if each.claim.id in details]
    shown = text(chosen) if chosen else card(found)
    console.print(shown, markup=False, highlight=False, soft_wrap=True, end="")


def card(found: Verdicts) -> str:
    """The outcomes counted for each scale, then one line per claim."""
    rows = [
        [each[0].claim.id, *(verdict.outcome.value for verdict in each), each[0].seeds]
        for each in zip(*found.values(), strict=True)
    ]
    table = text_table([["claim", *found, "seeds"], *rows])
    return "\n".join([*(_counts(*each) for each in found.items()), "", *table]) + "\n"


def _counts(scale: str, verdicts: list[Verdict]) -> str:
    """As in `mini: 4 of 11 claims supported, 2 contradicted, 5 not run; on 10 seeds`."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    others = [f"{counts[each]} {each.value}" for each in list(Outcome)[1:] if counts[each]]
    counted = f"{counts[Outcome.supported]} of {len(verdicts)} claims supported"
    seeds = {v.fewest_seeds for v in verdicts if v.outcome is not Outcome.not_run}
    ends = " to ".join(str(end) for end in sorted({min(seeds), max(seeds)})) if seeds else ""
    return f"{scale}: {', '.join([counted, *others])}" + (f"; on {ends} seeds" if seeds else "")


def remarks(verdict: Verdict) -> list[str]:
    """The claim, the verdict with its reasons, the paper's words, and notes."""
    claim = verdict.claim
    found = [f"{claim.statement}.", verdict.sentence, claim.quote, claim.note, *verdict.notes]
    return [line for line in found if line]


def cells(finding: Finding) -> list[str]:
    """Cells under HEAD."""
    check = finding.check
    undecided = finding.outcome is Outcome.undecided
    return [
        f"{check.name}: {finding.arms}",
        f"{check.statistic.name} of {check.metric}",
        number(finding),
        _short(finding.interquartile_mean),
        _short(finding.improvement),
        str(check.range),
        str(len(finding.seeds)),
        finding.outcome.value + (f": {finding.why}" if undecided else ""),
    ]


def number(finding: Finding) -> str:
    """Mean and interval."""
    interval = finding.interval
    return _short(finding.mean) + (f" [{interval[0]:.3g}, {interval[1]:.3g}]" if interval else "")


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def legend(verdicts: Iterable[Verdict]) -> tuple[list[Range], list[Statistic]]:
    """The thresholds and statistics in use, each once."""
    checks = [finding.check for verdict in verdicts for finding in verdict.findings]
    ranges = list(dict.fromkeys(check.range for check in checks))
    return ranges, list(dict.fromkeys(check.statistic for check in checks))


def text(verdicts: list[Verdict]) -> str:
    """Verdicts with all details, for a terminal and for the file beside a figure."""
    lines = []
    for verdict in verdicts:
        lines += remarks(verdict)
        for part, statistic, mean, iqm, p, should, seeds, outcome in map(cells, verdict.findings):
            lines += [
                f"  {part}: {outcome}",
                f"    {statistic}: {mean}, IQM {iqm}, P {p}; should be {should}; {seeds} seeds",
            ]
        lines.append("")
    ranges, statistics = legend(verdicts)
    lines += [f"{each}." for each in READING]
    lines += [f"{each}  {each.name}: {each.reason}." for each in ranges]
    lines += [f"{each.name}: {each.meaning}." for each in statistics]
    wrapped = [textwrap.wrap(line, WIDTH, subsequent_indent="      ") or [""] for line in lines]
    return "\n".join(part for each in wrapped for part in each) + "\n"


def markdown(found: Verdicts) -> str:
    """A page with all verdicts and their details, the thresholds and the statistics."""
    lines = ["# Claims", "", *markdown_table(*summary(found)), ""]
    lines += [f"- {line}." for line in READING] + [""]
    for scale, verdicts in found.items():
        lines += [f"## Scale {scale}", ""]
        for verdict in verdicts:
            lines += [f"### {verdict.claim.id}", ""]
            lines += [line for remark in remarks(verdict) for line in (remark, "")]
            lines += [*markdown_table(HEAD, map(cells, verdict.findings)), ""]
    ranges, statistics = legend(each for verdicts in found.values() for each in verdicts)
    lines += ["## Thresholds", ""]
    thresholds = ([each.name, str(each), each.reason] for each in ranges)
    lines += markdown_table(["name", "range", "reason"], thresholds)
    lines += ["", "## Statistics", ""]
    lines += markdown_table(["name", "of one run"], ([s.name, s.meaning] for s in statistics))
    return "\n".join(lines) + "\n"


def plain(verdict: Verdict) -> dict[str, Any]:
    """A verdict as plain values, for JSON."""
    claim = verdict.claim
    return {
        "claim": claim.id,
        "scale": verdict.scale,
        "verdict": verdict.outcome.value,
        "seeds": verdict.fewest_seeds,
        "claim_seeds": verdict.claim_seeds,
        "reasons": verdict.reasons,
        "statement": claim.statement,
        "quote": claim.quote,
        "figures": claim.figures,
        "needs": claim.needs,
        "note": claim.note,
        "runs": verdict.notes,
        "parts": [_plain(finding) for finding in verdict.findings],
    }


def _plain(finding: Finding) -> dict[str, Any]:
    check = finding.check
    return {
        "name": check.name,
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
