"""Verdicts as a card, text and Markdown."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pandas

from rec_experiments.analysis.claims.decision import Direction, Outcome
from rec_experiments.analysis.claims.judge import CONTROL, GAIN, PREMISE, PRIMARY, Finding, Verdict
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
    judged = {each.claim.id for each in verdicts if each.outcome is not Outcome.not_run}
    rows = [
        (each.claim.id, each.setting.title, each.short)
        for each in verdicts
        if each.claim.id in judged
    ]
    lines = [*counts(verdicts), ""]
    if rows:
        titles = dict.fromkeys(each.setting.title for each in verdicts)
        lines += [*text_table(_by_setting(rows, ["claim"], [*titles])), ""]
    missing = any(each.outcome is Outcome.not_run for each in verdicts)
    return "\n".join([*lines, *([MISSING] if missing else [])]).rstrip() + "\n"


def _by_setting(rows: Iterable[tuple[str, ...]], head: list[str], titles: list[str]) -> list[Any]:
    """A table with a column for each setting. rows: the values of `head`, a setting, a cell."""
    table = pandas.DataFrame(rows, columns=[*head, "setting", "cell"]).drop_duplicates()
    wide = table.pivot_table("cell", head, "setting", aggfunc="first", sort=False)
    wide = wide.reindex(columns=titles).fillna(Outcome.not_run.value).reset_index()
    return [[*wide.columns], *wide.to_numpy().tolist()]


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
                f"  {each.part}: {each.said}",
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
    titles = dict.fromkeys(
        each.setting.title for each in verdicts if each.outcome is not Outcome.not_run
    )
    shown = [each for each in verdicts if each.setting.title in titles]
    found = [(verdict, finding) for verdict in shown for finding in verdict.findings]
    releases = sorted({release for verdict in verdicts for release in verdict.releases})
    made_by = f"- runs of release {', '.join(map(str, releases))}"
    lines = ["# Claims", "", INTRODUCTION, "", *(f"- {line}" for line in counts(verdicts)), made_by]
    for title, parts, head in (
        ("Verdicts, with the effect of the primary endpoint", (PRIMARY,), ["claim", "endpoint"]),
        ("Premises and controls", (PREMISE, CONTROL), ["claim", "part", "endpoint"]),
        ("Gain of the on-policy run, and δ", (GAIN,), ["endpoint"]),
    ):
        rows = []
        for verdict, finding in found:
            end = finding.endpoint
            if end.part in parts:
                factor = f" by {end.factor:g}×" if end.factor else ""
                name = f"{end.name}: {end.direction.value}{factor}"
                about = {"claim": verdict.claim.id, "part": end.part, "endpoint": name}
                where = verdict.setting.title
                rows.append((*map(about.__getitem__, head), where, _cell(verdict, finding)))
        first, *rest = _by_setting(rows, head, [*titles])
        lines += ["", f"## {title}", "", *markdown_table(first, rest)]
    statistics = dict.fromkeys(finding.endpoint.statistic for _, finding in found)
    meanings = [f"{each.name}: {each.meaning}" for each in statistics]
    lines += ["", "## How to read the tables", ""]
    lines += [f"- {line}." for line in (*READING, *meanings)]
    quotes = "`claims --details=ID` quotes the papers."
    lines += ["", "## The claims in words", "", quotes, ""]
    for claim in {each.claim.id: each.claim for each in verdicts}.values():
        lines.append(f"- **{claim.id}**: {claim.statement}. {claim.note}".rstrip())
    return "\n".join(lines) + "\n"


def _cell(verdict: Verdict, finding: Finding) -> str:
    if finding.mean is None:
        return Outcome.not_run.value
    if finding.part == GAIN:
        return f"{effect(finding)}, δ = {finding.delta:.3g}"
    decided = finding.part == PRIMARY and verdict.outcome is not Outcome.undecided
    return f"{verdict.short if decided else finding.said}: {effect(finding)}"
