"""How often the checks report a difference that does not exist, and find one that does.

The code that judges real runs judges simulated ones. Their two arms come from the same process, or
one is higher. Accuracy follows a learning curve plus two AR(1) deviations: one that both arms of a
seed share, and one of each run. An evaluation counts correct answers to a number of problems. A
policy that never changes is simulated as well, to see the bias of each statistic.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from rec_experiments.analysis.claims import CLAIMS
from rec_experiments.analysis.claims.decision import Outcome
from rec_experiments.analysis.claims.definitions import HIGHER
from rec_experiments.analysis.claims.verdict import Check, Claim, Compare, judge
from rec_experiments.analysis.results.figure_data import FigureData
from rec_experiments.analysis.results.formatting import print_table
from rec_experiments.analysis.results.runs import Row, Run
from rec_experiments.analysis.results.statistics import DROP_AT_SYNCHRONISATION

Array = NDArray[np.float64]

STEPS = np.arange(0, 151, 15)  # of the evaluations, as in the miniature
PROBLEMS = 256
START, HEIGHT, MIDPOINT, EXPONENT = 0.35, 0.75, 45, 1.5  # of the learning curve
CORRELATION = 0.8  # of a deviation with the one at the previous evaluation
COMMON, OWN = 0.02, 0.03  # standard deviations of the shared and of a run's own deviation
FIGURE, METRIC, FIRST, SECOND = "simulated", "accuracy", "first", "second"

PAIRS = 1000
GAINS, SEEDS = (0.01, 0.02, 0.05), (3, 5, 10)
CLAIM_SEEDS = 10
DECIDED = (Outcome.supported, Outcome.contradicted)


def two_arm_checks() -> list[Check]:
    """One check for each combination of statistic, range and comparison of two arms in a claim."""
    found = {
        (check.statistic, check.range, check.compare): check
        for claim in CLAIMS
        for check in claim.checks
        if check.against
    }
    return [
        replace(check, figures=(FIGURE,), column="", arm=FIRST, against=SECOND, metric=METRIC)
        for check in found.values()
    ]


def name(check: Check) -> str:
    return f"{check.range.name}: {check.statistic.name}, {check.compare.name}"


def wrong(check: Check) -> Outcome:
    """The outcome that is false for two equal arms."""
    equal = 1 if check.compare is Compare.ratio else 0
    return Outcome.contradicted if check.range.low < equal < check.range.high else Outcome.supported


def accuracies(rng: np.random.Generator, pairs: int, seeds: int, gain: float) -> Array:
    """Pairs x 2 arms x seeds x evaluations; the first arm is higher by `gain` after the start."""
    rise = 1 / (1 + (MIDPOINT / np.maximum(STEPS, 1e-9)) ** EXPONENT)
    level = START + (HEIGHT - START) * rise
    level = level + COMMON * _ar1(rng, (pairs, 1, seeds)) + OWN * _ar1(rng, (pairs, 2, seeds))
    level[:, 0, :, 1:] += gain
    return rng.binomial(PROBLEMS, level.clip(0, 1)) / PROBLEMS


def of_level_curves(rng: np.random.Generator, runs: int) -> dict[str, Array]:
    """The statistics of a single arm that claims use, for policies that stay at START."""
    used = {check.statistic for claim in CLAIMS for check in claim.checks if not check.against}
    curves = rng.binomial(PROBLEMS, START, (runs, len(STEPS))) / PROBLEMS
    shown = sorted(used - {DROP_AT_SYNCHRONISATION}, key=lambda each: each.name)
    return {
        each.name: np.array([each.of(_rows(curve), METRIC) for curve in curves]) for each in shown
    }


def _rows(curve: Array) -> list[Row]:
    return [
        {"step": step, METRIC: value}
        for step, value in zip(STEPS.tolist(), curve.tolist(), strict=True)
    ]


def _ar1(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """An AR(1) process that starts at 0 and has a stationary standard deviation of 1."""
    path = np.zeros((*shape, len(STEPS)))
    noise = rng.normal(scale=np.sqrt(1 - CORRELATION**2), size=path.shape)
    for at in range(1, len(STEPS)):
        path[..., at] = CORRELATION * path[..., at - 1] + noise[..., at]
    return path


def outcomes(
    checks: list[Check], rng: np.random.Generator, pairs: int, seeds: int, gain: float = 0.0
) -> dict[str, list[Outcome]]:
    """The outcome of each check, as a claim by itself, on each pair."""
    found: dict[str, list[Outcome]] = {name(check): [] for check in checks}
    for pair in _figures(accuracies(rng, pairs, seeds, gain)):
        for check in checks:
            claim = Claim(id="", statement="", quote="", checks=(check,))
            found[name(check)].append(judge(claim, {FIGURE: pair}, FIGURE, None).outcome)
    return found


def _figures(values: Array) -> Iterator[FigureData]:
    for pair in values:
        runs = [
            Run(arm=arm, column="", seed=seed, path=Path(), state="done", rows=_rows(curve))
            for arm, curves in zip((FIRST, SECOND), pair, strict=True)
            for seed, curve in enumerate(curves)
        ]
        yield FigureData(
            name=FIGURE, title="", caption="", scale="", claim_seeds=None, shown=[],
            arms=[FIRST, SECOND], columns=[""], panels=[], runs=runs,
        )  # fmt: skip


def show(console: Console) -> None:
    """Print the rate of false outcomes of every check, the bias of every statistic, and the power
    of one check."""
    rng = np.random.default_rng(0)
    checks = two_arm_checks()
    found = outcomes(checks, rng, PAIRS, CLAIM_SEEDS)
    console.print(f"{PAIRS} pairs of equal arms, {CLAIM_SEEDS} seeds")
    rows = []
    for check in checks:
        each = found[name(check)]
        rates = [f"{each.count(outcome) / len(each):.1%}" for outcome in DECIDED]
        rows.append([name(check), *rates, wrong(check).value])
    print_table(console, ["check", "supported", "contradicted", "false outcome"], rows)
    rows = []
    for statistic, values in of_level_curves(rng, PAIRS).items():
        low, high = np.quantile(values, (0.05, 0.95))
        rows.append([statistic, *(f"{each:.3f}" for each in (values.mean(), low, high))])
    console.print(
        f"\n{PAIRS} runs of a policy that never changes, {len(STEPS)} evaluations of {PROBLEMS} "
        f"problems, accuracy {START}"
    )
    print_table(console, ["statistic", "mean", "lowest 5 %", "highest 5 %"], rows)
    higher = [check for check in checks if check.range is HIGHER][:1]
    rows = []
    for gain in GAINS:
        shares = []
        for seeds in SEEDS:
            [each] = outcomes(higher, rng, PAIRS, seeds, gain).values()
            shares.append(f"{each.count(Outcome.supported) / len(each):.0%}")
        rows.append([f"{gain:g}", *shares])
    console.print(f"\n{PAIRS} pairs of different arms: how often `{name(higher[0])}` is supported")
    print_table(console, ["true difference", *(f"{seeds} seeds" for seeds in SEEDS)], rows)
