"""Verdicts as a card, text, Markdown and JSON."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pandas

from rec_experiments.analysis.claims.decision import Direction, Outcome
from rec_experiments.analysis.claims.judge import CONTROL, GAIN, PRIMARY, Finding, Verdict
from rec_experiments.analysis.results.formatting import markdown_table, text_table

WIDTH = 100  # characters in a line of text
INTRODUCTION = (
    "Do the papers' claims hold in small runs? Each claim of arXiv 2509.24203 and arXiv 2505.22257 "
    "was written down, with the one number that decides it, before any run, and worded so that the "
    "papers' own curves support it. "
    "`python -m rec_experiments claims` judges them on your runs; "
    "`--runs docs/results/claims.csv.xz` judges them on the archive that this page is made of."
)
MISSING = (
    "Claims are judged on seeds and learning rates of their own. "
    "`python -m rec_experiments claims --commands`\nprints the sweeps that make the missing runs."
)
READING = (
    "δ, the smallest effect that matters, is a fifth of the on-policy gain of REINFORCE (GRPO for "
    "arXiv 2505.22257) at the same scale and rate, mean over seeds, and is treated as known. For a "
    "ratio (/) it is a factor",
    "[ ] is the 95 % t interval of the mean over seeds; a mean without one is the same for all "
    "seeds. Two arms are compared seed by seed, and the mean of a ratio is geometric. The seeds of "
    "a scale share one supervised initial model, so intervals cover the order of the data and "
    "sampling alone",
    "supported: the interval excludes 0 and extends beyond δ in the claimed direction (alike: it "
    "lies within ±δ; not lower: above −δ), every premise holds, and the control agrees",
    "contradicted: the effect is larger than δ in the opposite direction (alike: in either; not "
    "lower: below −δ), or the control fails. Of a control only the sign counts, except where not "
    "lower is expected",
    "no difference above δ: the interval lies within ±δ, even if it excludes 0",
    "premise not met: a premise is contradicted or shows no difference above δ, so the claim says "
    "nothing about these runs. This comes before all other outcomes. Claims about stale data have "
    "the premise that it is stale enough to hurt: a clipped method ends above REINFORCE, or, for a "
    "collapse, REINFORCE ends below its start",
    "undecided: an interval is too wide. The number of seeds that would decide is a range, from "
    "the interval of the variance. not run: runs are missing, or the claim is judged at the first "
    "rate only",
    "No verdict is corrected for the number of verdicts, many of which share runs",
)


def card(verdicts: Sequence[Verdict]) -> str:
    """The outcomes counted for each setting, one line per claim that has runs, and how to make
    missing runs."""
    rows = [(each.claim.id, each.setting.title, each.short) for each in verdicts]
    table = _by_setting(pandas.DataFrame(rows, columns=["claim", "setting", "verdict"]))
    table = table[(table.iloc[:, 1:] != Outcome.not_run.value).any(axis="columns")]
    lines = counts(verdicts)
    if len(table):
        lines += ["", *text_table([[*table.columns], *table.to_numpy().tolist()])]
    if any(each.outcome is Outcome.not_run for each in verdicts):
        lines += ["", MISSING]
    return "\n".join(lines) + "\n"


def _by_setting(table: pandas.DataFrame) -> pandas.DataFrame:
    """The last column in one column per `setting`, with one row for each value of the others."""
    *keys, cell = [each for each in table.columns if each != "setting"]
    wide = table.pivot_table(cell, keys, "setting", aggfunc="first", sort=False)
    return wide.fillna(Outcome.not_run.value)[table["setting"].unique()].reset_index()


def counts(verdicts: Iterable[Verdict]) -> list[str]:
    """As in `mini at 3.0e-05: 4 of 19 claims supported, 2 contradicted; on 10 seeds`."""
    found: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        found.setdefault(verdict.setting.title, []).append(verdict)
    lines = []
    for title, judged in found.items():
        number = Counter(verdict.outcome for verdict in judged)
        others = [f"{number[each]} {each.value}" for each in list(Outcome)[1:] if number[each]]
        seeds = {v.fewest_seeds for v in judged if v.outcome is not Outcome.not_run}
        ends = " to ".join(map(str, sorted({min(seeds), max(seeds)}))) if seeds else ""
        supported = f"{number[Outcome.supported]} of {len(judged)} claims supported"
        on_seeds = f"; on {ends} seeds" if ends else ""
        lines.append(f"{title}: {', '.join([supported, *others])}{on_seeds}")
    return lines


def effect(finding: Finding) -> str:
    """Mean and interval, as in `-0.026 [-0.032, -0.019]`."""
    if finding.mean is None:
        return "-"
    low, high = finding.interval or (0, 0)
    return f"{finding.mean:.3g}" + (f" [{low:.3g}, {high:.3g}]" if low < high else "")


def text(verdicts: Iterable[Verdict]) -> str:
    """Verdicts with all details, for a terminal and for the file beside a figure."""
    lines = []
    for verdict in verdicts:
        claim = verdict.claim
        releases = ", ".join(map(str, verdict.releases))
        made_by = f"Runs of release {releases}." if releases else ""
        words = (f"{claim.statement}.", verdict.sentence, claim.quote, claim.note, made_by)
        lines += [line for line in words if line]
        for each in verdict.findings:
            lines += [
                f"  {each.part}: {each.why or each.outcome.value}",
                f"    {each.endpoint.name}: {effect(each)}; expected: {_expected(each)}; "
                f"{len(each.seeds)} seeds",
            ]
        lines.append("")
    lines += [f"{each}." for each in READING]
    wrapped = [textwrap.wrap(line, WIDTH, subsequent_indent="      ") or [""] for line in lines]
    return "\n".join(part for each in wrapped for part in each) + "\n"


def _expected(finding: Finding) -> str:
    """What the claim says of the endpoint, as in `higher, δ = 0.041`."""
    direction = finding.endpoint.direction
    sign = finding.part == CONTROL and direction is not Direction.not_lower
    if sign or finding.delta is None:
        return direction.value
    return f"{direction.value}, δ = {finding.delta:.3g}" + ("×" if finding.endpoint.factor else "")


def markdown(verdicts: Sequence[Verdict]) -> str:
    """A page: the verdicts with their effects, premises and controls, and the claims in words."""
    judged = {each.setting.title for each in verdicts if each.outcome is not Outcome.not_run}
    shown = [each for each in verdicts if each.setting.title in judged]
    table = pandas.DataFrame(
        [_row(verdict, finding) for verdict in shown for finding in verdict.findings],
        columns=["claim", "part", "endpoint", "setting", "effect"],
    )
    primary, gain = table["part"] == PRIMARY, table["part"] == GAIN
    releases = sorted({release for verdict in verdicts for release in verdict.releases})
    made_by = f"- runs of release {', '.join(map(str, releases))}"
    lines = ["# Claims", "", INTRODUCTION, "", *(f"- {line}" for line in counts(verdicts)), made_by]
    for title, part, left_out in (
        ("Verdicts, with the effect of the primary endpoint", primary, ["part"]),
        ("Premises and controls", ~primary & ~gain, []),
        ("Gain of the on-policy run, and δ", gain, ["claim", "part"]),
    ):
        wide = _by_setting(table[part].drop(columns=left_out).drop_duplicates())
        rows = markdown_table([*wide.columns], wide.to_numpy().tolist())
        lines += ["", f"## {title}", "", *rows]
    statistics = {each.endpoint.statistic: None for v in verdicts for each in v.findings}
    meanings = [f"{each.name}: {each.meaning}" for each in statistics]
    lines += ["", "## How to read the tables", ""]
    lines += [f"- {line}." for line in (*READING, *meanings)]
    quotes = "`claims --details=ID` quotes the papers."
    lines += ["", "## The claims in words", "", quotes, ""]
    for claim in {each.claim.id: each.claim for each in verdicts}.values():
        lines.append(f"- **{claim.id}**: {claim.statement}. {claim.note}".rstrip())
    return "\n".join(lines) + "\n"


def _row(verdict: Verdict, finding: Finding) -> tuple[str, ...]:
    """A line of the page's tables: claim, part, endpoint, setting and effect."""
    endpoint, part = finding.endpoint, finding.part
    metric = "" if endpoint.metric == "eval/accuracy" else f" of {endpoint.metric}"
    factor = f" by {endpoint.factor:g}×" if endpoint.factor else ""
    name = f"{endpoint.statistic.name}{metric}, {endpoint.arms} "
    name += f"({endpoint.figure}, {endpoint.column}): {endpoint.direction.value}{factor}"
    decided = part == PRIMARY and verdict.outcome is not Outcome.undecided
    outcome = verdict.short if decided else finding.why or finding.outcome.value
    if finding.mean is None:
        cell = Outcome.not_run.value
    elif part == GAIN:
        cell = f"{effect(finding)}, δ = {finding.delta:.3g}"
    else:
        cell = f"{outcome}: {effect(finding)}"
    return verdict.claim.id, part, name, verdict.setting.title, cell


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
        "releases": verdict.releases,
        "parts": [
            {key: getattr(each, key) for key in ("part", "seeds", "mean", "interval", "delta")}
            | {
                "endpoint": each.endpoint.name,
                "direction": each.endpoint.direction.value,
                "outcome": each.outcome.value,
                "why": each.why,
            }
            for each in verdict.findings
        ],
    }
