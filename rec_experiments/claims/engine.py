"""From runs to a verdict: a statistic of each run, its interval over seeds, a threshold.

A claim is a conjunction of checks. A check is supported if the whole interval lies in the range
that the claim asks for, not supported if all of it lies outside, and otherwise the seeds at hand do
not decide. Two arms are compared seed by seed.
"""

import fnmatch
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product

import numpy as np

from rec_experiments.results.over_seeds import interval_of_mean, of_finished
from rec_experiments.results.runs import FigureData
from rec_experiments.results.statistics import Statistic
from rec_experiments.results.tables import makers


class Outcome(Enum):
    supported = "supported"
    not_supported = "not supported"
    not_enough_data = "not enough data"


class Compare(Enum):
    """How the statistics of two arms become one number."""

    difference = "−"
    ratio = "/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """Where a number must lie, ends excluded, and why there."""

    name: str
    reason: str
    low: float = -math.inf
    high: float = math.inf

    def judge(self, interval: tuple[float, float]) -> Outcome:
        """Supported inside, not supported outside, undecided across an end."""
        low, high = interval
        if self.low < low and high < self.high:
            return Outcome.supported
        if high <= self.low or self.high <= low:
            return Outcome.not_supported
        return Outcome.not_enough_data

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"> {self.low:g}"
        if math.isinf(self.low):
            return f"< {self.high:g}"
        return f"{self.low:g} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class Check:
    """One part of a claim.

    says: the part in words. figures: that hold its runs; the same arm and column in several figures
    is the same run. column: its title. arm, against: labels of the legend, with * for any text;
    each arm that fits is checked, against each. Without `against` the arm stands for itself.
    """

    says: str
    figures: tuple[str, ...]
    column: str
    arm: str
    statistic: Statistic
    range: Range
    against: str = ""
    metric: str = "eval/accuracy"
    compare: Compare = Compare.difference


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """id, says, figures: as in the paper. note: what must be known beside the verdict."""

    id: str
    says: str
    figures: tuple[str, ...]
    checks: tuple[Check, ...]
    note: str = ""

    def within(self, figure: str) -> "Claim | None":
        """The claim's parts that one figure shows; None if it shows none."""
        checks = tuple(check for check in self.checks if figure in check.figures)
        return replace(self, checks=checks) if checks else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One check on one arm, or pair of arms. mean, interval: over seeds; None without enough.

    why: what keeps the data from being enough, else empty.
    """

    check: Check
    arms: str
    seeds: list[int]
    mean: float | None
    interval: tuple[float, float] | None
    outcome: Outcome
    why: str

    def describe(self) -> str:
        part = f"{self.check.says} ({self.arms})"
        return f"{part}: {self.why}" if self.why else part


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """scale: of the runs, "" without any. makers: sentences on runs that other code made."""

    claim: Claim
    scale: str
    findings: list[Finding]
    makers: list[str]

    @property
    def outcome(self) -> Outcome:
        """The worst of the parts: one that fails decides, then one that lacks data."""
        outcomes = [finding.outcome for finding in self.findings]
        for decisive in (Outcome.not_supported, Outcome.not_enough_data):
            if decisive in outcomes:
                return decisive
        return Outcome.supported

    @property
    def title(self) -> str:
        """The outcome; one that was reached in miniature says so."""
        where = " in miniature" if self.scale == "mini" else ""
        return self.outcome.value + (where if self.outcome != Outcome.not_enough_data else "")

    @property
    def seeds(self) -> int:
        """Fewest seeds of any part."""
        return min(len(finding.seeds) for finding in self.findings)

    @property
    def reasons(self) -> list[str]:
        """The parts that fail, or those that lack data."""
        if self.outcome == Outcome.supported:
            return []
        if not any(finding.seeds for finding in self.findings):
            return ["no finished runs"]
        return [each.describe() for each in self.findings if each.outcome == self.outcome]

    @property
    def sentence(self) -> str:
        return ": ".join(filter(None, [self.claim.id, self.title, "; ".join(self.reasons)]))


def judge(claim: Claim, data_by_figure: Mapping[str, FigureData]) -> Verdict:
    """The verdict on one claim, from those of its figures that are at hand."""
    findings = [finding for check in claim.checks for finding in _findings(check, data_by_figure)]
    scale = next((data.scale for data in data_by_figure.values()), "")
    figures = [data_by_figure[name] for name in claim.figures if name in data_by_figure]
    done = [run for data in figures for run in data.runs if run.state == "done"]
    return Verdict(claim=claim, scale=scale, findings=findings, makers=makers(done))


def _findings(check: Check, data_by_figure: Mapping[str, FigureData]) -> Iterator[Finding]:
    figures = [data_by_figure[name] for name in check.figures if name in data_by_figure]
    for arm, against in product(_labels(figures, check.arm), _labels(figures, check.against)):
        values = _by_seed(figures, arm, check)
        if against:
            values = _paired(values, _by_seed(figures, against, check), check.compare)
        arms = f"{arm} {check.compare.value} {against}" if against else arm
        yield _finding(check, f"{arms}, {check.column}" if check.column else arms, values)


def _labels(figures: list[FigureData], pattern: str) -> list[str]:
    """Arms that fit; the pattern itself where none does, so that what is missing has a name."""
    arms = dict.fromkeys(arm for data in figures for arm in data.arms)
    return fnmatch.filter(arms, pattern) or [pattern]


def _by_seed(figures: list[FigureData], arm: str, check: Check) -> dict[int, float]:
    """The statistic of each finished run; a seed's first run counts."""
    values: dict[int, float] = {}
    for data in figures:
        runs = data.select(arm, check.column)
        for seed, value in of_finished(runs, check.statistic.of, check.metric):
            values.setdefault(seed, value)
    return values


def _paired(
    first: dict[int, float], second: dict[int, float], compare: Compare
) -> dict[int, float]:
    """Of the seeds that both have; a ratio to 0 has no value."""
    shared = [seed for seed in first if seed in second]
    if compare is Compare.difference:
        return {seed: first[seed] - second[seed] for seed in shared}
    return {seed: first[seed] / second[seed] for seed in shared if second[seed]}


def _finding(check: Check, arms: str, by_seed: dict[int, float]) -> Finding:
    values = list(by_seed.values())
    interval = interval_of_mean(values)
    outcome = check.range.judge(interval) if interval else Outcome.not_enough_data
    if not by_seed:
        why = "no finished runs"
    elif interval is None:
        why = "one seed, an interval needs at least 2"
    else:
        why = "these seeds do not decide" if outcome == Outcome.not_enough_data else ""
    return Finding(
        check=check,
        arms=arms,
        seeds=sorted(by_seed),
        mean=float(np.mean(values)) if values else None,
        interval=interval,
        outcome=outcome,
        why=why,
    )
