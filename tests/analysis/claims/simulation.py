"""How often identical arms get a false verdict, and how often an effect of δ is found.

Accuracy follows a learning curve plus two AR(1) deviations: one that all arms of a seed share, and
one of each run. An evaluation counts correct answers to a number of problems. δ is measured from a
third arm of the same process, the on-policy run, as in a claim. `python
tests/analysis/claims/simulation.py` prints the shares of every outcome for ten seeds, with an
argument for another number of seeds.
"""

import sys

import numpy as np
import pandas
from numpy.typing import NDArray

from rec_experiments.analysis.claims.decision import Direction, Outcome
from rec_experiments.analysis.claims.judge import CLAIMS, GAIN, SHARE, Endpoint, combine, find
from rec_experiments.analysis.results.statistics import SeedValues, Statistic

Array = NDArray[np.float64]
Shares = dict[Outcome, float]

STEPS = np.arange(0, 151, 15)  # of the evaluations, as in the miniature
PROBLEMS = 256
START, HEIGHT, MIDPOINT, EXPONENT = 0.35, 0.75, 45, 1.5  # of the learning curve
CORRELATION = 0.8  # of a deviation with the one at the previous evaluation
COMMON, OWN = 0.02, 0.03  # standard deviations of the shared and of a run's own deviation
METRIC = "eval/accuracy"
PAIRS, SEEDS = 1000, 10
[YARDSTICK] = [each for each in CLAIMS[0].endpoints if each.part == GAIN]
DIRECTED = (Direction.higher, Direction.lower)


def endpoints() -> list[Endpoint]:
    """One primary endpoint of each kind: statistic, direction, and difference or ratio."""
    primaries = [claim.primary for claim in CLAIMS]
    return list(
        {(each.statistic, each.direction, each.factor): each for each in primaries}.values()
    )


def false_rate(endpoint: Endpoint, shares: Shares) -> float:
    """The highest share of an outcome that is false for identical arms."""
    wrong = [Outcome.contradicted, *([Outcome.supported] if endpoint.direction in DIRECTED else [])]
    return max(shares[each] for each in wrong)


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

    def of(curve: Array) -> float:
        return statistic(pandas.Series(curve, STEPS, name=METRIC))

    return np.apply_along_axis(of, -1, curves)


def simulated(
    rng: np.random.Generator, pairs: int, seeds: int
) -> list[tuple[Endpoint, list[Shares]]]:
    """For every kind of endpoint the shares of outcomes of identical arms, of a true effect of δ on
    the claimed side, and of one on the other side.

    The effect is added to the statistic of the first arm. It is the true δ, the mean over all
    pairs; a pair's own δ is measured from its seeds.
    """
    curves = accuracies(rng, pairs, seeds)
    gains_PS = _measured(curves[:, 2], YARDSTICK.statistic)
    found = []
    for endpoint in endpoints():
        first_PS, second_PS = np.moveaxis(_measured(curves[:, :2], endpoint.statistic), 1, 0)
        if endpoint.factor:
            compared_PS, effect = np.log(first_PS / second_PS), float(np.log(endpoint.factor))
        else:
            compared_PS, effect = first_PS - second_PS, SHARE * float(gains_PS.mean())
        side = -1 if endpoint.direction is Direction.lower else 1
        shares = [
            _shares(endpoint, compared_PS + shift * side * effect, gains_PS) for shift in (0, 1, -1)
        ]
        found.append((endpoint, shares))
    return found


def _shares(endpoint: Endpoint, values_PS: Array, gains_PS: Array) -> Shares:
    """The outcomes of a claim with this endpoint, and no premise but the gain."""
    outcomes = []
    for values, gains in zip(values_PS, gains_PS, strict=True):
        delta = SHARE * float(gains.mean())
        gain = find(YARDSTICK, _by_seed(gains), delta)
        outcomes.append(combine([find(endpoint, _by_seed(values), delta), gain])[0])
    return {each: outcomes.count(each) / len(outcomes) for each in Outcome}


def _by_seed(values: Array) -> SeedValues:
    return SeedValues(dict(enumerate(values.tolist())), {})


def show(seeds: int = SEEDS) -> None:
    """Print the share of every outcome for identical arms and for arms that differ by δ."""
    found = simulated(np.random.default_rng(0), PAIRS, seeds)
    for at, title in enumerate(
        ("identical arms", "a true effect of δ as claimed", "a true effect of δ on the other side")
    ):
        rows = {
            f"{endpoint.direction.value}: {endpoint.statistic.name}"
            + (", ratio" if endpoint.factor else ""): {
                outcome.value: f"{share:.1%}" for outcome, share in shares[at].items()
            }
            for endpoint, shares in found
        }
        print(f"{PAIRS} pairs of arms, {seeds} seeds: {title}")
        print(pandas.DataFrame.from_dict(rows, "index").drop(columns="not run").to_string(), "\n")
    worst = max(false_rate(endpoint, shares[0]) for endpoint, shares in found)
    print(f"The most frequent false outcome of identical arms: {worst:.1%}.")


if __name__ == "__main__":
    show(*map(int, sys.argv[1:]))
