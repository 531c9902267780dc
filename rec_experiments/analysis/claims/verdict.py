"""From the statistics of runs to a verdict on a claim.

A claim is a conjunction of checks. Each check has a statistic of a run and the range in which its
mean over seeds must lie; decision.py says when the seeds decide. Two arms are compared seed by
seed: runs with the same seed share prompts and random numbers, so their common variation cancels.
Ratios are compared on a logarithmic scale.
"""

import fnmatch
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product

import numpy as np

from rec_experiments.analysis.claims.decision import (
    MOST_SEEDS,
    Outcome,
    Range,
    decide,
    seeds_to_decide,
)
from rec_experiments.analysis.results.aggregate import (
    SeedValues,
    finished_values,
    interquartile_mean,
    interval_of_mean,
    probability_of_improvement,
)
from rec_experiments.analysis.results.figure_data import FigureData
from rec_experiments.analysis.results.runs import releases_text
from rec_experiments.analysis.results.statistics import Statistic
from rec_experiments.analysis.results.summary import duplicates


class Compare(Enum):
    """How the statistics of two arms become one number per seed."""

    difference = "−"
    ratio = "/"


@dataclass(frozen=True, slots=True)
class Check:
    """One part of a claim.

    name: what it checks, in words. figures: figures with its runs; the same arm and column in
    several figures is the same run. column: title of the column. arm, against: legend labels, with
    * for any text; every matching arm is checked, or compared with every arm that matches
    `against`. compare: how two arms are compared.
    """

    name: str
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
    """statement: the claim in our words. quote: in the paper's, "" if it is only drawn there.
    needs: what its runs need beyond a CPU. note: how to interpret the verdict."""

    id: str
    statement: str
    quote: str
    checks: tuple[Check, ...]
    needs: str = ""
    note: str = ""

    @property
    def figures(self) -> list[str]:
        """The figures that its checks read."""
        found = {figure for check in self.checks for figure in check.figures}
        return sorted(found, key=lambda name: (len(name), name))

    def within(self, figure: str) -> "Claim | None":
        """The claim with only the checks that one figure shows; None if it shows none."""
        checks = tuple(check for check in self.checks if figure in check.figures)
        return replace(self, checks=checks) if checks else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """The values of one arm, or pair of arms.

    values: by seed, logarithms for a ratio. without: why a finished seed has none. arms: for a
    pair, the values of either arm at the seeds of `values`.
    """

    values: dict[int, float]
    without: dict[int, str]
    arms: tuple[list[float], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of a check on one arm, or pair of arms.

    mean, interval, interquartile_mean: over seeds, geometric for a ratio; None with too few seeds.
    improvement: probability that the first arm's value is higher; None for a single arm. why: why
    the check is undecided or not run, otherwise empty.
    """

    check: Check
    arms: str
    seeds: list[int]
    mean: float | None
    interval: tuple[float, float] | None
    interquartile_mean: float | None
    improvement: float | None
    outcome: Outcome
    why: str

    def describe(self) -> str:
        part = f"{self.check.name} ({self.arms})"
        return f"{part}: {self.why}" if self.why else part


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The findings on a claim at a scale. claim_seeds: the number of seeds that should decide, None
    for any. notes: which releases made the runs, and which runs are in several folders."""

    claim: Claim
    scale: str
    claim_seeds: int | None
    findings: list[Finding]
    notes: list[str]

    @property
    def outcome(self) -> Outcome:
        """Contradicted if any finding is, otherwise not run, undecided or supported, in this
        order."""
        outcomes = {finding.outcome for finding in self.findings}
        order = (Outcome.contradicted, Outcome.not_run, Outcome.undecided, Outcome.supported)
        return next(outcome for outcome in order if outcome in outcomes)

    @property
    def name(self) -> str:
        """The outcome in words, with what the claim needs if it was not run."""
        missing = self.outcome is Outcome.not_run and self.claim.needs
        return self.outcome.value + (f" (needs {missing})" if missing else "")

    @property
    def title(self) -> str:
        """The outcome and the scale."""
        decided = self.outcome is not Outcome.not_run
        return f"{self.name} at scale {self.scale}" if decided else self.name

    @property
    def fewest_seeds(self) -> int:
        """The smallest number of seeds of any finding."""
        return min(len(finding.seeds) for finding in self.findings)

    @property
    def seeds(self) -> str:
        """As in `10`, or `3 of 10` if there are fewer than there should be."""
        fewest, needed = self.fewest_seeds, self.claim_seeds
        return f"{fewest} of {needed}" if needed is not None and fewest < needed else str(fewest)

    @property
    def reasons(self) -> list[str]:
        """The findings that contradict the claim, or that leave it undecided or not run."""
        if self.outcome is Outcome.supported:
            return []
        if all(finding.outcome is Outcome.not_run for finding in self.findings):
            return [] if self.claim.needs else ["no finished runs"]
        return [each.describe() for each in self.findings if each.outcome is self.outcome]

    @property
    def sentence(self) -> str:
        seeds = "" if self.outcome is Outcome.not_run else f", {self.seeds} seeds"
        parts = [self.claim.id, self.title + seeds, "; ".join(self.reasons)]
        return ": ".join(filter(None, parts))


def judge(
    claim: Claim, data_by_figure: Mapping[str, FigureData], scale: str, claim_seeds: int | None
) -> Verdict:
    """The verdict on a claim. Figures of the claim that are not given count as not run."""
    samples = [
        (check, arms, sample)
        for check in claim.checks
        for arms, sample in _samples(check, data_by_figure)
    ]
    parts = sum(bool(sample.values) for _, _, sample in samples)
    figures = [data_by_figure[name] for name in claim.figures if name in data_by_figure]
    done = [run for data in figures for run in data.runs if run.done]
    return Verdict(
        claim=claim,
        scale=scale,
        claim_seeds=claim_seeds,
        findings=[_finding(check, arms, sample, parts) for check, arms, sample in samples],
        notes=[*filter(None, [releases_text(done)]), *duplicates(done)],
    )


def _samples(
    check: Check, data_by_figure: Mapping[str, FigureData]
) -> Iterator[tuple[str, Sample]]:
    """Name and values of each arm, or pair of arms, that matches the check."""
    figures = [data_by_figure[name] for name in check.figures if name in data_by_figure]
    for arm, against in product(_labels(figures, check.arm), _labels(figures, check.against)):
        first = _seed_values(figures, arm, check)
        if against:
            arms = f"{arm} {check.compare.value} {against}"
            sample = _paired(first, _seed_values(figures, against, check), check.compare)
        else:
            arms, sample = arm, Sample(values=first.values, without=first.without)
        yield f"{arms}, {check.column}" if check.column else arms, sample


def _labels(figures: list[FigureData], pattern: str) -> list[str]:
    """The arms that match; the pattern itself if none does, to name what is missing."""
    arms = dict.fromkeys(arm for data in figures for arm in data.arms)
    return fnmatch.filter(arms, pattern) or [pattern]


def _seed_values(figures: list[FigureData], arm: str, check: Check) -> SeedValues[float]:
    runs = [run for data in figures for run in data.select(arm, check.column)]
    return finished_values(runs, check.statistic.of, check.metric)


def _paired(first: SeedValues[float], second: SeedValues[float], compare: Compare) -> Sample:
    """The comparison at each seed that both arms have finished."""
    values, without = {}, {}
    for seed in sorted(first.finished & second.finished):
        one, other = first.values.get(seed), second.values.get(seed)
        if one is None or other is None:
            without[seed] = (first.without | second.without)[seed]
        elif compare is Compare.difference:
            values[seed] = one - other
        elif one > 0 and other > 0:
            values[seed] = math.log(one / other)
        else:
            without[seed] = "a ratio of numbers that are not positive"
    numbers = tuple([each.values[seed] for seed in values] for each in (first, second))
    return Sample(values=values, without=without, arms=numbers)


def _finding(check: Check, arms: str, sample: Sample, parts: int) -> Finding:
    values = list(sample.values.values())
    is_ratio = bool(check.against) and check.compare is Compare.ratio
    outcome, why = _outcome(sample, check.range.logarithm() if is_ratio else check.range, parts)
    interval = interval_of_mean(values)
    shown = math.exp if is_ratio else float
    return Finding(
        check=check,
        arms=arms,
        seeds=sorted(sample.values),
        mean=shown(np.mean(values)) if values else None,
        interval=(shown(interval[0]), shown(interval[1])) if interval else None,
        interquartile_mean=shown(interquartile_mean(values)) if values else None,
        improvement=probability_of_improvement(*sample.arms) if values and sample.arms else None,
        outcome=outcome,
        why=why,
    )


def _outcome(sample: Sample, range_: Range, parts: int) -> tuple[Outcome, str]:
    """The outcome, and why it is undecided or not run.

    If any finished run has no value the check is undecided: the others would be a selection.
    """
    values = list(sample.values.values())
    if sample.without:
        why = "; ".join(dict.fromkeys(sample.without.values()))
        return Outcome.undecided, f"no value at seed {', '.join(map(str, sample.without))}: {why}"
    if not values:
        return Outcome.not_run, "no finished runs"
    if len(values) == 1:
        return Outcome.undecided, "one seed has no spread"
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
    outcome = decide(len(values), mean, spread, range_, parts)
    if outcome is not Outcome.undecided:
        return outcome, ""
    enough = seeds_to_decide(mean, spread, range_, parts) or f"more than {MOST_SEEDS}"
    return outcome, f"{enough} seeds would decide"
