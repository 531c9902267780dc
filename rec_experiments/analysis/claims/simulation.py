"""How often the checks decide on a difference that is not there, and find one that is.

The runs are made up: two arms that are drawn from one process, or of which one is higher, judged by
the code that judges real runs. An arm's accuracy follows a learning curve; what two arms of a seed
have in common wanders about it, and so does what each has of its own, both as AR(1) from evaluation
to evaluation; an evaluation counts right answers to a number of problems. And one arm of a policy
that stays as it is: what its statistics are by luck alone.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from rec_experiments.analysis.claims import CLAIMS
from rec_experiments.analysis.claims.decision import Outcome
from rec_experiments.analysis.claims.thresholds import HIGHER
from rec_experiments.analysis.claims.verdict import Check, Claim, Compare, judge
from rec_experiments.analysis.results.figure_data import FigureData
from rec_experiments.analysis.results.runs import Row, Run
from rec_experiments.analysis.results.statistics import DROP_AT_SYNCHRONISATION

Array = NDArray[np.float64]

STEPS = np.arange(0, 151, 15)  # of the evaluations of a miniature
PROBLEMS = 256
START, HEIGHT, MIDPOINT, EXPONENT = 0.35, 0.75, 45, 1.5  # of the learning curve
CORRELATION = 0.8  # of a deviation with that of the evaluation before
COMMON, OWN = 0.02, 0.03  # standard deviations of the two, in accuracy
FIGURE, METRIC, FIRST, SECOND = "simulated", "accuracy", "first", "second"

PAIRS = 1000
GAINS, SEEDS = (0.01, 0.02, 0.05), (3, 5, 10)
CLAIM_SEEDS = 10
DECIDED = (Outcome.supported, Outcome.contradicted)


def two_arm_checks() -> list[Check]:
    """Every kind of check of two arms that a claim has: statistic, range and comparison."""
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
    """The outcome that is false of two arms that do not differ."""
    none = 1 if check.compare is Compare.ratio else 0
    allowed = check.range.low < none < check.range.high
    return Outcome.contradicted if allowed else Outcome.supported


def accuracies(rng: np.random.Generator, pairs: int, seeds: int, gain: float) -> Array:
    """Pairs x 2 arms x seeds x evaluations; the first arm is higher by `gain` after the start."""
    rise = 1 / (1 + (MIDPOINT / np.maximum(STEPS, 1e-9)) ** EXPONENT)
    level = START + (HEIGHT - START) * rise
    level = level + COMMON * _wander(rng, (pairs, 1, seeds)) + OWN * _wander(rng, (pairs, 2, seeds))
    level[:, 0, :, 1:] += gain
    return rng.binomial(PROBLEMS, level.clip(0, 1)) / PROBLEMS


def of_level_curves(rng: np.random.Generator, runs: int) -> dict[str, Array]:
    """The statistics of one arm that claims ask for, of policies that stay at START."""
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


def _wander(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """AR(1) with standard deviation 1 in the long run, from 0: arms of a seed start alike."""
    path = np.zeros((*shape, len(STEPS)))
    pushes = rng.normal(scale=np.sqrt(1 - CORRELATION**2), size=path.shape)
    for at in range(1, len(STEPS)):
        path[..., at] = CORRELATION * path[..., at - 1] + pushes[..., at]
    return path


def outcomes(
    checks: list[Check], rng: np.random.Generator, pairs: int, seeds: int, gain: float = 0.0
) -> dict[str, list[Outcome]]:
    """What each check, as a claim of its own, says of each pair."""
    found: dict[str, list[Outcome]] = {name(check): [] for check in checks}
    for pair in _figures(accuracies(rng, pairs, seeds, gain)):
        for check in checks:
            claim = Claim(id="", says="", quote="", figures=(FIGURE,), checks=(check,))
            found[name(check)].append(judge(claim, {FIGURE: pair}, FIGURE, None).outcome)
    return found


def _figures(values: Array) -> Iterator[FigureData]:
    for pair in values:
        runs = [
            Run(
                arm=arm,
                column="",
                seed=seed,
                path=Path(),
                state="done",
                rows=_rows(curve),
            )
            for arm, curves in zip((FIRST, SECOND), pair, strict=True)
            for seed, curve in enumerate(curves)
        ]
        yield FigureData(
            name=FIGURE, title="", caption="", scale="", claim_seeds=None, shown=[],
            arms=[FIRST, SECOND], columns=[""], panels=[], runs=runs,
        )  # fmt: skip


def show(console: Console) -> None:
    """Print the rate of false decisions of every check, and the power of one."""
    rng = np.random.default_rng(0)
    checks = two_arm_checks()
    found = outcomes(checks, rng, PAIRS, CLAIM_SEEDS)
    table = Table("check", "supported", "contradicted", "false is", box=None, pad_edge=False)
    for check in checks:
        said = found[name(check)]
        rates = [f"{np.mean([each is outcome for each in said]):.1%}" for outcome in DECIDED]
        table.add_row(name(check), *rates, wrong(check).value)
    console.print(f"{PAIRS} pairs of arms that do not differ, {CLAIM_SEEDS} seeds")
    console.print(table)
    table = Table("statistic", "mean", "lowest 5 %", "highest 5 %", box=None, pad_edge=False)
    for statistic, values in of_level_curves(rng, PAIRS).items():
        low, high = np.quantile(values, (0.05, 0.95))
        table.add_row(statistic, *(f"{each:.3f}" for each in (values.mean(), low, high)))
    console.print(
        f"\n{PAIRS} runs of a policy that stays as it is, {len(STEPS)} evaluations of {PROBLEMS} "
        f"problems, accuracy {START}"
    )
    console.print(table)
    higher = [check for check in checks if check.range is HIGHER][:1]
    table = Table(
        "true difference", *(f"{seeds} seeds" for seeds in SEEDS), box=None, pad_edge=False
    )
    for gain in GAINS:
        shares = []
        for seeds in SEEDS:
            [said] = outcomes(higher, rng, PAIRS, seeds, gain).values()
            shares.append(np.mean([each is Outcome.supported for each in said]))
        table.add_row(f"{gain:g}", *(f"{share:.0%}" for share in shares))
    console.print(f"\n{PAIRS} pairs of arms that differ: found by `{name(higher[0])}`")
    console.print(table)
