"""How often identical arms get a false verdict, and how often a real effect is found.

Accuracy follows a learning curve plus two AR(1) deviations: one that all arms of a seed share, and
one of each run. An evaluation counts correct answers to a number of problems. δ is measured from a
third arm of the same process, the on-policy run, as in a claim.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from rec_experiments.analysis.claims.decision import Direction, Outcome
from rec_experiments.analysis.claims.definitions import CLAIMS, ON_POLICY_GAIN
from rec_experiments.analysis.claims.verdict import (
    GAIN,
    PRIMARY,
    SHARE,
    Endpoint,
    combine,
    find,
)
from rec_experiments.analysis.results.aggregate import SeedValues
from rec_experiments.analysis.results.formatting import text_table
from rec_experiments.analysis.results.statistics import Statistic

Array = NDArray[np.float64]

STEPS = np.arange(0, 151, 15)  # of the evaluations, as in the miniature
PROBLEMS = 256
START, HEIGHT, MIDPOINT, EXPONENT = 0.35, 0.75, 45, 1.5  # of the learning curve
CORRELATION = 0.8  # of a deviation with the one at the previous evaluation
COMMON, OWN = 0.02, 0.03  # standard deviations of the shared and of a run's own deviation
METRIC = "eval/accuracy"
PAIRS, SEEDS = 1000, 10
ALIKE, NOT_LOWER = Direction.alike, Direction.not_lower
# True effects, in units of δ on the claimed side
NONE, CLAIMED, OPPOSITE = 0, 1, -1


@dataclass(frozen=True, slots=True)
class Simulated:
    """The shares of the outcomes of one kind of endpoint at a true effect."""

    endpoint: Endpoint
    effect: int
    shares: dict[Outcome, float]

    @property
    def name(self) -> str:
        ratio = ", ratio" if self.endpoint.factor else ""
        return f"{self.endpoint.direction.value}: {self.endpoint.statistic.name}{ratio}"

    @property
    def false(self) -> float:
        """The highest share of an outcome that is false at this effect."""
        wrong = false_outcomes(self.endpoint.direction, self.effect)
        return max(self.shares[outcome] for outcome in wrong)


def endpoints() -> list[Endpoint]:
    """One primary endpoint of each kind: statistic, direction, and difference or ratio."""
    primaries = [claim.primary for claim in CLAIMS]
    kinds = {(each.statistic, each.direction, each.factor): each for each in primaries}
    return list(kinds.values())


def false_outcomes(direction: Direction, effect: int) -> set[Outcome]:
    """An effect of exactly δ is neither below it nor alike."""
    found = {Outcome.premise_not_met}
    if effect == CLAIMED:
        found |= {Outcome.supported} if direction is ALIKE else {Outcome.contradicted}
        return found | ({Outcome.no_difference} if direction not in (ALIKE, NOT_LOWER) else set())
    if effect == OPPOSITE:
        found |= {Outcome.supported, Outcome.no_difference}
    elif direction in (ALIKE, NOT_LOWER):
        found |= {Outcome.contradicted}
    else:
        found |= {Outcome.supported, Outcome.contradicted}
    return found


def accuracies(rng: np.random.Generator, pairs: int, seeds: int) -> Array:
    """Pairs x 3 arms x seeds x evaluations, all arms of the same process."""
    rise = 1 / (1 + (MIDPOINT / np.maximum(STEPS, 1e-9)) ** EXPONENT)
    level = START + (HEIGHT - START) * rise
    level = level + COMMON * _ar1(rng, (pairs, 1, seeds)) + OWN * _ar1(rng, (pairs, 3, seeds))
    return rng.binomial(PROBLEMS, level.clip(0, 1)) / PROBLEMS


def _ar1(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """An AR(1) process that starts at 0 and has a stationary standard deviation of 1."""
    path = np.zeros((*shape, len(STEPS)))
    noise = rng.normal(scale=np.sqrt(1 - CORRELATION**2), size=path.shape)
    for at in range(1, len(STEPS)):
        path[..., at] = CORRELATION * path[..., at - 1] + noise[..., at]
    return path


def _measured(curves: Array, statistic: Statistic) -> Array:
    """The statistic of every curve; the last axis is the evaluations."""
    steps = STEPS.tolist()

    def of(curve: Array) -> float:
        values = zip(steps, curve.tolist(), strict=True)
        return statistic.of([{"step": step, METRIC: value} for step, value in values], METRIC)

    return np.apply_along_axis(of, -1, curves)


def simulated(
    rng: np.random.Generator, pairs: int, seeds: int, effects: Sequence[int]
) -> list[Simulated]:
    """Every kind of endpoint at every true effect, added to the statistic of the first arm.

    The unit of an effect is the true δ, the mean over all pairs; a pair's own δ is measured from
    its seeds.
    """
    curves = accuracies(rng, pairs, seeds)
    gains_PS = _measured(curves[:, 2], ON_POLICY_GAIN.statistic)
    found = []
    for endpoint in endpoints():
        first_PS, second_PS = np.moveaxis(_measured(curves[:, :2], endpoint.statistic), 1, 0)
        if endpoint.factor:
            compared_PS, unit = np.log(first_PS / second_PS), float(np.log(endpoint.factor))
        else:
            compared_PS, unit = first_PS - second_PS, SHARE * float(gains_PS.mean())
        side = -1 if endpoint.direction is Direction.lower else 1
        for effect in effects:
            outcomes = [
                _outcome(endpoint, values, gains)
                for values, gains in zip(compared_PS + side * effect * unit, gains_PS, strict=True)
            ]
            shares = {each: outcomes.count(each) / pairs for each in Outcome}
            found.append(Simulated(endpoint, effect, shares))
    return found


def _outcome(endpoint: Endpoint, values: Array, gains: Array) -> Outcome:
    """The outcome of a claim with this endpoint, and no premise but the gain."""
    delta = SHARE * float(gains.mean())
    gain = find(GAIN, ON_POLICY_GAIN, _by_seed(gains), delta)
    return combine(find(PRIMARY, endpoint, _by_seed(values), delta), [gain], [])[0]


def _by_seed(values: Array) -> SeedValues[float]:
    return SeedValues(dict(enumerate(values.tolist())), {})


def show(console: Console) -> None:
    """Print the share of every outcome for identical arms and for arms that differ by δ."""
    shown = [each for each in Outcome if each is not Outcome.not_run]
    with Console(stderr=True).status(f"simulating {PAIRS} pairs of arms"):
        found = simulated(np.random.default_rng(0), PAIRS, SEEDS, (NONE, CLAIMED, OPPOSITE))
    for effect, title in (
        (NONE, "identical arms"),
        (CLAIMED, "a true effect of δ on the claimed side"),
        (OPPOSITE, "a true effect of δ on the other side"),
    ):
        console.print(f"{PAIRS} pairs of arms, {SEEDS} seeds: {title}")
        rows = [
            [each.name, *(f"{each.shares[outcome]:.1%}" for outcome in shown), f"{each.false:.1%}"]
            for each in found
            if each.effect == effect
        ]
        head = ["endpoint", *(outcome.value for outcome in shown), "highest false"]
        console.print("\n".join([*text_table([head, *rows]), ""]), soft_wrap=True, highlight=False)
