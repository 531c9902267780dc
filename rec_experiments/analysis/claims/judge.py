"""What a claim consists of, and its verdict on some runs. `claims.yaml` holds the claims.

δ, the smallest effect that matters, is SHARE of the gain of the claim's yardstick, an on-policy run
of the same scale and rate; that this run learns is the first premise. Two arms are compared seed by
seed: runs with the same seed share prompts and random numbers, so their common variation cancels.
Ratios are compared on a logarithmic scale.

The first of these decides a verdict:

1. premise not met, if a premise is contradicted or shows no difference above δ
2. not run, if an endpoint lacks runs
3. undecided, if a premise is
4. contradicted, if the control or the primary endpoint is
5. undecided, if the control is
6. the outcome of the primary endpoint
"""

import fnmatch
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rec_experiments.analysis.claims.decision import (
    EQUAL_SEEDS,
    Direction,
    Outcome,
    decide,
    interval,
    seeds_to_decide,
)
from rec_experiments.analysis.results.figure import FigureRuns
from rec_experiments.analysis.results.statistics import (
    ACCURACY,
    STATISTICS,
    Interval,
    SeedValues,
    Statistic,
    by_seed,
)

SHARE = 0.2  # of the on-policy gain; a smaller effect does not matter
FAILED = (Outcome.contradicted, Outcome.no_difference)
GAIN, PREMISE, PRIMARY, CONTROL = "on-policy gain", "premise", "primary endpoint", "control"


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """A statistic of one arm, or the difference between two arms.

    part: PRIMARY; GAIN, whose mean is the on-policy gain; PREMISE, without which a claim says
    nothing; or CONTROL, which could fail. arm, against: legend labels of the figure, with * for any
    text and | between alternatives, of which the first that the figure has counts. against: "" for
    a single arm. factor: for a metric other than accuracy the arms are compared as a ratio, and δ
    is this factor.
    """

    part: str
    figure: str
    column: str
    arm: str
    statistic: Statistic
    direction: Direction
    against: str = ""
    metric: str = ACCURACY
    factor: float | None = None

    @property
    def arms(self) -> str:
        sign = " / " if self.factor else " − "
        return self.arm + (sign + self.against if self.against else "")

    @property
    def name(self) -> str:
        metric = "" if self.metric == ACCURACY else f" of {self.metric}"
        return f"{self.statistic.name}{metric}, {self.arms} ({self.figure}, {self.column})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A claim with one primary endpoint, the first of its endpoints.

    statement: the claim in our words. quote: in the paper's, with the section. own_rate_only: its
    figure sets learning rates itself. note: what a reader of the verdict should know.
    """

    id: str
    statement: str
    quote: str
    endpoints: tuple[Endpoint, ...]
    own_rate_only: bool = False
    note: str = ""

    @property
    def primary(self) -> Endpoint:
        return self.endpoints[0]

    @property
    def figures(self) -> list[str]:
        """The figures whose runs it needs."""
        found = {each.figure for each in self.endpoints}
        return sorted(found, key=lambda name: (len(name), name))


def _endpoint(part: str, given: dict[str, Any], **place: str) -> Endpoint:
    """place: figure and column, unless the endpoint names others."""
    statistic, direction = STATISTICS[given["statistic"]], Direction(given["direction"])
    return Endpoint(**{**place, **given, "statistic": statistic, "direction": direction}, part=part)


def _claim(
    yardstick: dict[str, Any],
    figure: str,
    column: str,
    primary: dict[str, Any],
    premises: tuple[dict[str, Any], ...] = (),
    control: dict[str, Any] | None = None,
    **words: Any,
) -> Claim:
    parts = [(PRIMARY, primary), (GAIN, yardstick), *((PREMISE, each) for each in premises)]
    parts += [(CONTROL, control)] if control else []
    return Claim(
        endpoints=tuple(_endpoint(*each, figure=figure, column=column) for each in parts), **words
    )


CLAIMS = tuple(
    _claim(paper["yardstick"], **entry)
    for paper in yaml.load(
        Path(__file__).with_name("claims.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader
    )
    for entry in paper["claims"]
)


# The verdict on a claim -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of one endpoint.

    mean, interval: over seeds, geometric for a ratio. delta: δ in the same unit, None if it is not
    known; 0 for a control, of which only the sign counts (unless it must not be lower). why: why it
    is undecided or not run, otherwise empty.
    """

    endpoint: Endpoint
    seeds: list[int]
    mean: float | None
    interval: Interval | None
    delta: float | None
    outcome: Outcome
    why: str

    @property
    def part(self) -> str:
        return self.endpoint.part

    @property
    def said(self) -> str:
        return self.why or self.outcome.value


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
    not judged here. releases: of the package that made the runs."""

    claim: Claim
    setting: Setting
    outcome: Outcome
    reasons: list[str]
    findings: list[Finding] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)

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
    def sentence(self) -> str:
        """As in `wide-clip-faster: undecided at mini, 3 of 10 seeds: control (…): undecided`."""
        fewest, needed = self.fewest_seeds, len(self.setting.seeds or ())
        seeds = f", {fewest} of {needed} seeds" if fewest < needed else f", {fewest} seeds"
        judged = f"{self.outcome.value} at {self.setting.title}"
        judged += seeds if self.outcome is not Outcome.not_run else ""
        return ": ".join(filter(None, [self.claim.id, judged, "; ".join(self.reasons)]))


def judge(claim: Claim, data: Mapping[str, FigureRuns], setting: Setting) -> Verdict:
    """The verdict on a claim. Figures of the claim that are not given count as not run."""
    if claim.own_rate_only and not setting.own:
        why = f"{claim.primary.figure} sets its learning rates itself, so only the usual one counts"
        return Verdict(claim=claim, setting=setting, outcome=Outcome.not_run, reasons=[why])
    values = {each: _values(each, data.get(each.figure)) for each in claim.endpoints}
    gains = [x for each in values if each.part == GAIN for x in values[each].values.values()]
    delta = SHARE * max(float(np.mean(gains)), 0.0) if gains else None
    findings = [find(endpoint, found, delta) for endpoint, found in values.items()]
    outcome, because = combine(findings)
    releases = [data[name].runs["release"].dropna() for name in claim.figures if name in data]
    return Verdict(
        claim=claim,
        setting=setting,
        outcome=outcome,
        reasons=[f"{each.part} ({each.endpoint.arms}): {each.said}" for each in because],
        findings=findings,
        releases=sorted({int(release) for each in releases for release in each.unique()}),
    )


def combine(findings: Sequence[Finding]) -> tuple[Outcome, list[Finding]]:
    """The outcome of a claim, in the order above, and the findings that make it other than
    supported."""
    [primary] = [each for each in findings if each.part == PRIMARY]
    premises, order = (GAIN, PREMISE), (GAIN, PREMISE, PRIMARY, CONTROL)
    for outcome, parts, states in (
        (Outcome.premise_not_met, premises, FAILED),
        (Outcome.not_run, order, (Outcome.not_run,)),
        (Outcome.undecided, premises, (Outcome.undecided,)),
        (Outcome.contradicted, (CONTROL, PRIMARY), (Outcome.contradicted,)),
        (Outcome.undecided, (CONTROL,), (Outcome.undecided,)),
        (primary.outcome, (PRIMARY,), (*FAILED, Outcome.undecided)),
    ):
        because = [each for each in findings if each.part in parts and each.outcome in states]
        if because:
            return outcome, sorted(because, key=lambda each: parts.index(each.part))
    return Outcome.supported, []


def find(endpoint: Endpoint, found: SeedValues, gain_delta: float | None) -> Finding:
    """The result of an endpoint from its values by seed; those of a ratio are logarithms.

    If any finished run has no value the endpoint is undecided: the others would be a selection.
    """
    values = list(found.values.values())
    delta = gain_delta if endpoint.factor is None else math.log(endpoint.factor)
    if endpoint.part == CONTROL and endpoint.direction is not Direction.not_lower:
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
            would = f", {needed[0]} to {needed[1]} seeds would decide" if needed else ""
            why = f"undecided{would}"
    shown: Callable[[float], float] = math.exp if endpoint.factor else float
    return Finding(
        endpoint=endpoint,
        seeds=sorted(found.values),
        mean=shown(float(np.mean(values))) if values else None,
        interval=(shown(ends[0]), shown(ends[1])) if ends else None,
        delta=None if delta is None else shown(delta),
        outcome=outcome,
        why=why,
    )


def _values(endpoint: Endpoint, figure: FigureRuns | None) -> SeedValues:
    """The endpoint's values by seed, or the reason why a finished seed has none."""
    if figure is None:
        return SeedValues({}, {})

    def of(patterns: str) -> SeedValues:
        fits = (arm for each in patterns.split("|") for arm in fnmatch.filter(figure.arms, each))
        steps = figure.select(next(fits, ""), endpoint.column)
        return by_seed(steps, endpoint.statistic, endpoint.metric)

    first = of(endpoint.arm)
    return _paired(first, of(endpoint.against), endpoint.factor) if endpoint.against else first


def _paired(first: SeedValues, second: SeedValues, factor: float | None) -> SeedValues:
    """The comparison at each seed that both arms have finished."""
    found = SeedValues({}, {})
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
