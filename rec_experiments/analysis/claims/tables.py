"""Verdicts as a card, text, Markdown and JSON. `found` maps titles of settings to verdicts."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rec_experiments.analysis.claims.decision import Direction, Outcome
from rec_experiments.analysis.claims.verdict import CONTROL, Finding, Verdict
from rec_experiments.analysis.results.formatting import markdown_table, text_table

Verdicts = Mapping[str, list[Verdict]]

WIDTH = 100  # characters in a line of text
MISSING = (
    "Claims are judged on seeds and learning rates of their own. "
    "`python -m rec_experiments claims --commands`\nprints the sweeps that make the missing runs."
)
HEAD = ["part", "endpoint", "mean [95 %]", "expected", "seeds", "outcome"]
READING = (
    "δ is the smallest effect that matters: a fifth of the on-policy gain of REINFORCE (GRPO for "
    "arXiv 2505.22257) at the same scale and rate, mean over seeds, and is treated as known. For a "
    "ratio (/) it is a factor",
    "[95 %] is the t interval of the mean over seeds. Two arms are compared seed by seed; the mean "
    "of a ratio is geometric. A mean without an interval is the same for all seeds. The seeds of a "
    "scale share one supervised initial model, so intervals cover the order of the data and "
    "sampling, not the initial model",
    "supported: the interval excludes 0 and extends beyond δ in the claimed direction (alike: it "
    "lies within ±δ, even if it excludes 0; not lower: it lies above −δ, even if below 0), every "
    "premise holds, and the control agrees",
    "contradicted: the interval does so in the opposite direction (alike: it lies outside ±δ; not "
    "lower: below −δ), or the control does. For a control only the sign counts, except where not "
    "lower is expected. no difference above δ: the interval lies within ±δ. More seeds can "
    "therefore turn an effect that is established but smaller than δ into no difference above δ",
    "premise not met: the claim says nothing about these runs. undecided: the interval is too "
    "wide; the number of seeds that would decide is a range, from the interval of the variance, "
    "or is not given. not run: runs are missing, or the claim is judged at the first rate only",
    "The first of these decides: a failed premise, missing runs, an undecided premise, a "
    "contradicted control or primary endpoint, an undecided control, the primary endpoint. No "
    "verdict is corrected for the number of verdicts, many of which share runs",
)
CURVES = (
    "the paper's curves: points that the papers' captions and text name, not read from the "
    "pictures, and collected before any run; one curve counts as six equal seeds. Each claim was "
    "worded so that its own source supports it, so this column checks the wording and is no "
    "evidence"
)


def card(found: Verdicts) -> str:
    """The outcomes counted for each setting, one line per claim that has runs, and how to make
    missing runs."""
    rows = [row for row in _outcomes(found) if {*row[1:]} != {Outcome.not_run.value}]
    table = ["", *text_table([["claim", *found], *rows])] if rows else []
    outcomes = {verdict.outcome for verdicts in found.values() for verdict in verdicts}
    missing = ["", MISSING] if Outcome.not_run in outcomes else []
    return "\n".join([*(_counts(*each) for each in found.items()), *table, *missing]) + "\n"


def _outcomes(found: Verdicts) -> list[list[str]]:
    """The name of each claim and its outcome in each setting."""
    return [
        [each[0].claim.id, *(verdict.short for verdict in each)]
        for each in zip(*found.values(), strict=True)
    ]


def _counts(title: str, verdicts: list[Verdict]) -> str:
    """As in `mini at 3.0e-05: 4 of 19 claims supported, 2 contradicted; on 10 seeds`."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    others = [f"{counts[each]} {each.value}" for each in list(Outcome)[1:] if counts[each]]
    counted = f"{counts[Outcome.supported]} of {len(verdicts)} claims supported"
    seeds = {v.fewest_seeds for v in verdicts if v.outcome is not Outcome.not_run}
    ends = " to ".join(str(end) for end in sorted({min(seeds), max(seeds)})) if seeds else ""
    return f"{title}: {', '.join([counted, *others])}" + (f"; on {ends} seeds" if seeds else "")


def remarks(verdict: Verdict) -> list[str]:
    """The claim, the verdict with its reasons, the paper's words, and notes."""
    claim = verdict.claim
    found = [f"{claim.statement}.", verdict.sentence, claim.quote, claim.note, *verdict.notes]
    return [line for line in found if line]


def cells(finding: Finding) -> list[str]:
    """Cells under HEAD."""
    ends = finding.interval
    mean = "-" if finding.mean is None else f"{finding.mean:.3g}"
    return [
        finding.part,
        finding.endpoint.name,
        mean + (f" [{ends[0]:.3g}, {ends[1]:.3g}]" if ends and ends[0] < ends[1] else ""),
        _expected(finding),
        str(len(finding.seeds)),
        finding.why or finding.outcome.value,
    ]


def _expected(finding: Finding) -> str:
    """What the claim says of the endpoint, as in `higher, δ = 0.041`."""
    direction = finding.endpoint.direction
    sign = finding.part == CONTROL and direction is not Direction.not_lower
    if sign or finding.delta is None:
        return direction.value
    return f"{direction.value}, δ = {finding.delta:.3g}" + ("×" if finding.endpoint.factor else "")


def text(verdicts: list[Verdict]) -> str:
    """Verdicts with all details, for a terminal and for the file beside a figure."""
    lines = []
    for verdict in verdicts:
        lines += remarks(verdict)
        for part, endpoint, mean, should, seeds, outcome in map(cells, verdict.findings):
            lines += [
                f"  {part}: {outcome}",
                f"    {endpoint}: {mean}; expected: {should}; {seeds} seeds",
            ]
        lines.append("")
    lines += [f"{each}." for each in READING]
    lines += [f"{name}: {meaning}." for name, meaning in _statistics(verdicts)]
    wrapped = [textwrap.wrap(line, WIDTH, subsequent_indent="      ") or [""] for line in lines]
    return "\n".join(part for each in wrapped for part in each) + "\n"


def _statistics(verdicts: Iterable[Verdict]) -> list[list[str]]:
    """The statistics in use, each once, with their meanings."""
    findings = [finding for verdict in verdicts for finding in verdict.findings]
    used = dict.fromkeys(finding.endpoint.statistic for finding in findings)
    return [[each.name, each.meaning] for each in used]


def markdown(found: Verdicts) -> str:
    """A page: the card, how to read it, then each claim with its endpoints in every setting."""
    everything = [verdict for verdicts in found.values() for verdict in verdicts]
    lines = ["# Claims", "", *markdown_table(["claim", *found], _outcomes(found)), ""]
    if all(each.outcome is Outcome.not_run for each in everything if each.setting.seeds):
        lines += ["There are no runs of these seeds yet.", ""]
    lines += [f"- {line}." for line in (*READING, CURVES)] + [""]
    for verdicts in zip(*found.values(), strict=True):
        claim = verdicts[0].claim
        lines += [f"## {claim.id}", ""]
        for words in filter(None, (f"{claim.statement}.", claim.quote, claim.note)):
            lines += [words, ""]
        for verdict in verdicts:
            if any(finding.seeds for finding in verdict.findings):
                outcome = "; ".join([verdict.outcome.value, *verdict.reasons])
                lines += [f"**{verdict.setting.title}**: {outcome}", ""]
                lines += [*markdown_table(HEAD, map(cells, verdict.findings)), ""]
                lines += [line for note in verdict.notes for line in (note, "")]
        without = [v for v in verdicts if not any(finding.seeds for finding in v.findings)]
        if without:
            lines += [f"Not run: {', '.join(v.setting.title for v in without)}.", ""]
    lines += ["## Statistics", "", *markdown_table(["name", "of one run"], _statistics(everything))]
    return "\n".join(lines) + "\n"


def plain(verdict: Verdict) -> dict[str, Any]:
    """A verdict as plain values, for JSON."""
    claim, setting = verdict.claim, verdict.setting
    return {
        "claim": claim.id,
        "scale": setting.scale,
        "rate": setting.rate,
        "verdict": verdict.outcome.value,
        "seeds": verdict.fewest_seeds,
        "claim_seeds": None if setting.seeds is None else list(setting.seeds),
        "reasons": verdict.reasons,
        **{key: getattr(claim, key) for key in ("statement", "quote", "figures", "note")},
        "runs": verdict.notes,
        "parts": [
            {key: getattr(finding, key) for key in ("part", "seeds", "mean", "interval", "delta")}
            | {
                "endpoint": finding.endpoint.name,
                "direction": finding.endpoint.direction.value,
                "outcome": finding.outcome.value,
                "why": finding.why,
            }
            for finding in verdict.findings
        ],
    }
