"""From the runs to a verdict on a claim.

A claim has one primary endpoint. Its premises are endpoints without which it says nothing; its
control is an endpoint that could fail. δ is SHARE of the gain of the claim's yardstick, an
on-policy run of the same scale and rate; that this run learns is the first premise.

Two arms are compared seed by seed: runs with the same seed share prompts and random numbers, so
their common variation cancels. Ratios are compared on a logarithmic scale.
"""

import fnmatch
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rec_experiments.analysis.claims.decision import (
    EQUAL_SEEDS,
    Direction,
    Interval,
    Outcome,
    decide,
    interval,
    seeds_to_decide,
)
from rec_experiments.analysis.results.aggregate import SeedValues, finished_values
from rec_experiments.analysis.results.figure_data import FigureData, duplicates
from rec_experiments.analysis.results.runs import releases_text
from rec_experiments.analysis.results.statistics import Statistic

SHARE = 0.2  # of the on-policy gain; a smaller effect does not matter
GAIN, PREMISE, PRIMARY, CONTROL = "on-policy gain", "premise", "primary endpoint", "control"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A statistic of one arm, or the difference between two arms.

    arm, against: legend labels of the figure, with * for any text and | between alternatives, of
    which the first that the figure has counts. against: "" for a single arm. factor: for a metric
    other than accuracy the arms are compared as a ratio, and δ is this factor.
    """

    figure: str
    column: str
    arm: str
    statistic: Statistic
    direction: Direction
    against: str = ""
    metric: str = "eval/accuracy"
    factor: float | None = None

    @property
    def arms(self) -> str:
        sign = " / " if self.factor else " − "
        return self.arm + (sign + self.against if self.against else "")

    @property
    def name(self) -> str:
        return f"{self.statistic.name} of {self.metric}, {self.arms} ({self.figure}, {self.column})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """statement: the claim in our words. quote: in the paper's, with the section. yardstick: the
    endpoint whose mean is the on-policy gain. own_rate_only: its figure sets learning rates itself.
    note: what a reader of the verdict should know."""

    id: str
    statement: str
    quote: str
    yardstick: Endpoint
    primary: Endpoint
    premises: tuple[Endpoint, ...] = ()
    control: Endpoint | None = None
    own_rate_only: bool = False
    note: str = ""

    @property
    def endpoints(self) -> list[Endpoint]:
        """All of them, the primary one first."""
        return [self.primary, self.yardstick, *self.premises, *filter(None, [self.control])]

    @property
    def figures(self) -> list[str]:
        """The figures whose runs it needs."""
        found = {each.figure for each in self.endpoints}
        return sorted(found, key=lambda name: (len(name), name))


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of one endpoint.

    part: its place in the claim. mean, interval: over seeds, geometric for a ratio. delta: δ in the
    same unit, None if it is not known; 0 for a control, of which only the sign counts (unless it
    must not be lower). why: why it is undecided or not run, otherwise empty.
    """

    part: str
    endpoint: Endpoint
    seeds: list[int]
    mean: float | None
    interval: Interval | None
    delta: float | None
    outcome: Outcome
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Where a claim is judged. scale: a choice of conf/scale. rate: the learning rate, None if it
    is not named. own: whether it is the rate of the scale's settings. seeds: those that count, None
    for any."""

    scale: str
    rate: float | None = None
    own: bool = True
    seeds: Collection[int] | None = None

    @property
    def title(self) -> str:
        return self.scale if self.rate is None else f"{self.scale} at {self.rate:.1e}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """reasons: why it is not supported. findings: the primary endpoint first; none if the claim is
    not judged here. notes: which releases made the runs, and which lie in several folders."""

    claim: Claim
    setting: Setting
    outcome: Outcome
    reasons: list[str]
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def title(self) -> str:
        return f"{self.outcome.value} at {self.setting.title}"

    @property
    def short(self) -> str:
        """The outcome, and whether it is the control that contradicts the claim."""
        contradicted = self.outcome is Outcome.contradicted
        by_control = contradicted and self.findings[0].outcome is not Outcome.contradicted
        return self.outcome.value + (" by its control" if by_control else "")

    @property
    def fewest_seeds(self) -> int:
        """The smallest number of seeds of any endpoint."""
        return min((len(finding.seeds) for finding in self.findings), default=0)

    @property
    def seeds(self) -> str:
        """As in `10`, or `3 of 10` if there are fewer than there should be."""
        fewest, needed = self.fewest_seeds, len(self.setting.seeds or ())
        return f"{fewest} of {needed}" if fewest < needed else str(fewest)

    @property
    def sentence(self) -> str:
        seeds = "" if self.outcome is Outcome.not_run else f", {self.seeds} seeds"
        parts = [self.claim.id, self.title + seeds, "; ".join(self.reasons)]
        return ": ".join(filter(None, parts))


def judge(claim: Claim, data: Mapping[str, FigureData], setting: Setting) -> Verdict:
    """The verdict on a claim. Figures of the claim that are not given count as not run."""
    if claim.own_rate_only and not setting.own:
        why = f"{claim.primary.figure} sets its learning rates itself, so only the usual one counts"
        return Verdict(claim=claim, setting=setting, outcome=Outcome.not_run, reasons=[why])

    def values(endpoint: Endpoint) -> SeedValues[float]:
        return _values(endpoint, data.get(endpoint.figure), setting.seeds)

    gains = values(claim.yardstick)
    delta = SHARE * max(float(np.mean([*gains.values.values()])), 0.0) if gains.values else None
    gain = find(GAIN, claim.yardstick, gains, delta)
    premises = [gain, *(find(PREMISE, each, values(each), delta) for each in claim.premises)]
    primary = find(PRIMARY, claim.primary, values(claim.primary), delta)
    controls = [find(CONTROL, each, values(each), delta) for each in [claim.control] if each]
    outcome, because = combine(primary, premises, controls)
    figures = [data[name] for name in claim.figures if name in data]
    runs = [run for each in figures for run in each.runs if run.done]
    done = [run for run in runs if setting.seeds is None or run.seed in setting.seeds]
    return Verdict(
        claim=claim,
        setting=setting,
        outcome=outcome,
        reasons=[f"{f.part} ({f.endpoint.arms}): {f.why or f.outcome.value}" for f in because],
        findings=[primary, *premises, *controls],
        notes=[*filter(None, [releases_text(done)]), *duplicates(done)],
    )


def combine(
    primary: Finding, premises: Sequence[Finding], controls: Sequence[Finding]
) -> tuple[Outcome, list[Finding]]:
    """The outcome of a claim, and the findings that make it other than supported.

    A failed premise comes first; then endpoints without runs, undecided premises, a failed control
    or primary endpoint, an undecided control, and last the primary endpoint.
    """
    failed = (Outcome.contradicted, Outcome.no_difference)
    everything = [*premises, primary, *controls]
    for outcome, findings, states in (
        (Outcome.premise_not_met, premises, failed),
        (Outcome.not_run, everything, (Outcome.not_run,)),
        (Outcome.undecided, premises, (Outcome.undecided,)),
        (Outcome.contradicted, [*controls, primary], (Outcome.contradicted,)),
        (Outcome.undecided, controls, (Outcome.undecided,)),
        (primary.outcome, [primary], (*failed, Outcome.undecided)),
    ):
        because = [each for each in findings if each.outcome in states]
        if because:
            return outcome, because
    return Outcome.supported, []


def find(
    part: str, endpoint: Endpoint, found: SeedValues[float], gain_delta: float | None
) -> Finding:
    """The result of an endpoint from its values by seed; those of a ratio are logarithms.

    If any finished run has no value the endpoint is undecided: the others would be a selection.
    """
    values = list(found.values.values())
    delta = gain_delta if endpoint.factor is None else math.log(endpoint.factor)
    if part == CONTROL and endpoint.direction is not Direction.not_lower:
        delta = 0.0
    ends = interval(values)
    outcome, why = Outcome.undecided, ""
    if found.without:
        reasons = "; ".join(dict.fromkeys(found.without.values()))
        why = f"no value at seed {', '.join(map(str, found.without))}: {reasons}"
    elif not values:
        outcome, why = Outcome.not_run, "no finished runs"
    elif delta is None:
        outcome, why = Outcome.not_run, "without an on-policy run δ is not known"
    elif len(values) == 1:
        why = "one seed has no spread"
    elif ends is None:
        why = f"{len(values)} equal values give no interval; {EQUAL_SEEDS} would decide"
    else:
        outcome = decide(ends, delta, endpoint.direction)
        if outcome is Outcome.undecided:
            needed = seeds_to_decide(values, delta, endpoint.direction)
            why = "undecided" + (
                f", {needed[0]} to {needed[1]} seeds would decide" if needed else ""
            )
    shown: Callable[[float], float] = math.exp if endpoint.factor else float
    return Finding(
        part=part,
        endpoint=endpoint,
        seeds=sorted(found.values),
        mean=shown(float(np.mean(values))) if values else None,
        interval=(shown(ends[0]), shown(ends[1])) if ends else None,
        delta=None if delta is None else shown(delta),
        outcome=outcome,
        why=why,
    )


def _values(
    endpoint: Endpoint, data: FigureData | None, seeds: Collection[int] | None
) -> SeedValues[float]:
    """The endpoint's values by seed, or the reason why a finished seed has none."""

    def of(pattern: str) -> SeedValues[float]:
        runs = data.select(_label(data.arms, pattern), endpoint.column) if data else []
        chosen = [run for run in runs if seeds is None or run.seed in seeds]
        return finished_values(chosen, endpoint.statistic.of, endpoint.metric)

    first = of(endpoint.arm)
    return _paired(first, of(endpoint.against), endpoint.factor) if endpoint.against else first


def _label(arms: Sequence[str], pattern: str) -> str:
    """The first arm that fits; the pattern itself if none does."""
    fits = (arm for each in pattern.split("|") for arm in fnmatch.filter(arms, each))
    return next(fits, pattern)


def _paired(
    first: SeedValues[float], second: SeedValues[float], factor: float | None
) -> SeedValues[float]:
    """The comparison at each seed that both arms have finished."""
    found: SeedValues[float] = SeedValues({}, {})
    for seed in sorted(first.finished & second.finished):
        one, other = first.values.get(seed), second.values.get(seed)
        if one is None or other is None:
            found.without[seed] = (first.without | second.without)[seed]
        elif factor is None:
            found.values[seed] = one - other
        elif one > 0 and other > 0:
            found.values[seed] = math.log(one / other)
        else:
            found.without[seed] = "a ratio of numbers that are not positive"
    return found
