"""What these tests lock: a verdict says what the runs say.

1. Curves that have every property the papers claim: every claim is supported.
2. Spoil one property: that claim is contradicted and names the part, and no other part fails.
3. One seed: undecided. Seeds that disagree: undecided, with the seeds that would decide. A run
   without a number: undecided. No finished run: not run.
4. Arms are compared seed by seed, ratios on the logarithm; beside the mean stand the interquartile
   mean and the probability of improvement.
5. Every check finds its arms and columns in the sweeps.
6. A figure's files hold its claims; the command line judges, prints and writes several scales.
"""

import dataclasses
import json
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fabricated import PERIOD, saw, write_run
from scipy import stats

from rec_experiments import sweeps
from rec_experiments.analysis import claims
from rec_experiments.analysis.claims import other_papers
from rec_experiments.analysis.claims.decision import Outcome
from rec_experiments.analysis.claims.definitions import (
    INTERVAL,
    NARROW,
    NARROW_4,
    NARROW_IS,
    OFFLINE,
    OFFSET,
    ON_POLICY,
    WIDE,
)
from rec_experiments.analysis.claims.verdict import Verdict, judge
from rec_experiments.analysis.results import figure_data as collect
from rec_experiments.analysis.results.figure_data import FigureData
from rec_experiments.analysis.results.runs import Run
from rec_experiments.analysis.results.statistics import FINAL_OVER_BEST
from rec_experiments.cli import claims as claims_command
from rec_experiments.cli.main import run_command

Curve = Callable[[float, int], float]  # of (share of the run, seed)
Cell = tuple[str, str, str]  # patterns of figure, arm and column

STEPS, EVERY, SEEDS = 100, 10, 10
COLUMNS = {
    "fig5": [ON_POLICY, INTERVAL],
    **{name: [INTERVAL, OFFSET, OFFLINE] for name in ("fig3", "fig9", "fig11")},
    **{name: [INTERVAL] for name in ("fig4", "fig6", "fig7", "fig10")},
    **{name: [""] for name in ("m2po", "areal")},
    "paper2_fig2": [other_papers.STRONG],
    **{name: [other_papers.WEAK] for name in ("paper2_table2", "paper2_table3")},
}
RING, TWO_SIDE = "REC-Ring-NoIS (0.2, 0.2) & (0.6, 2.0)", "REC-TwoSide-NoIS (0.2)"
ARMS = {
    "fig3": ["REINFORCE", "GRPO", NARROW, NARROW_IS, WIDE],
    "fig4": [NARROW_4, "REC-OneSide-IS (0.2, 0.25)", "REC-Ring-NoIS (0.2, 0.25) & (0.6, 2.0)",
             WIDE, "REC-TwoSide-NoIS (0.2, 0.25)", "REC-TwoSide-NoIS (0.6, 2.0)"],
    "fig5": ["REINFORCE", "RED-Weight", "RED-Drop", WIDE],
    "fig6": ["GRPO", NARROW, "RED-Weight"],
    "fig7": ["GRPO", NARROW, "RED-Weight"],
    "fig9": ["REINFORCE", "GRPO", TWO_SIDE, "REC-TwoSide-IS (0.2)", RING],
    "fig10": ["GRPO (0.2), lr 5e-3", "GRPO (0.2), lr 1e-3", f"{NARROW}, lr 5e-3",
              f"{NARROW}, lr 1e-3", f"{WIDE}, lr 5e-4", "REINFORCE, lr 1e-3"],
    "fig11": ["REINFORCE", WIDE, "OPMD (0.1)", "AsymRE (-0.1)"],
    "paper2_fig2": [other_papers.FRESH, other_papers.MASKED, other_papers.OLD_MODEL,
                    other_papers.OLD_DATA],
    **{name: [other_papers.FRESH, other_papers.OLD_MODEL]
       for name in ("paper2_table2", "paper2_table3")},
    "m2po": [other_papers.GRPO_FRESH, other_papers.GRPO_STALE],
    "areal": [other_papers.DECOUPLED_FRESH, other_papers.DECOUPLED_STALE],
}  # fmt: skip


def through(*heights: float) -> Curve:
    """Straight lines through points that lie evenly over the run; seeds differ a little."""
    places = np.linspace(0, 1, len(heights))
    return lambda share, seed: float(np.interp(share, places, heights)) + 0.002 * seed


FAST, SLOW, FLAT = through(0.3, 0.75, 0.8, 0.85, 0.85), through(0.3, 0.6), through(0.3, 0.3)
FLAT_ZERO: Curve = lambda share, seed: 0.0  # noqa: E731
COLLAPSE = through(0.3, 0.65, 0.2, 0, 0, 0, 0)
DIP = through(0.3, 0.6, 0.3, 0.55, 0.6)
FALLS = through(0.3, 0.5, 0.3, 0.65, 0.7)
PLATEAU = through(0.3, 0.45, 0.45, 0.45)
DECLINE = through(0.3, 0.5, 0.7, 0.5, 0.3, 0.2)
FRAGILE = through(0.3, 0.7, 0.7, 0.3, 0.1)


def teeth(height: float, period: int = PERIOD) -> Curve:
    return lambda share, seed: saw(round(share * STEPS), height, period)


# What the papers describe; of the patterns that fit a cell, the last wins.
ACCURACY: dict[Cell, Curve] = {
    ("*", "*", "*"): SLOW,
    ("*", WIDE + "*", "*"): FAST,
    ("*", "REINFORCE", "*"): COLLAPSE,
    ("*", "REINFORCE", OFFSET): DIP,
    ("fig5", "RE[DC]-*", "*"): FAST,
    ("fig5", "REINFORCE", ON_POLICY): FAST,
    ("*", "* (0.2)", OFFLINE): PLATEAU,
    ("fig3", "GRPO", OFFLINE): PLATEAU,
    ("*", WIDE, OFFLINE): DECLINE,
    ("fig9", "REC-Ring-*", "*"): FAST,
    ("fig9", "REC-TwoSide-*", "*"): FRAGILE,
    ("fig9", "GRPO", "*"): SLOW,
    ("paper2_*", "*", "*"): FAST,
    ("paper2_*", other_papers.FRESH, "*"): FALLS,
    ("paper2_*", other_papers.OLD_DATA, "*"): FLAT,
    ("areal", "*", "*"): FAST,
    ("m2po", other_papers.GRPO_FRESH, "*"): FAST,
}
OTHERS: dict[str, dict[Cell, Curve]] = {
    "train/reward": {
        ("*", "*", "*"): SLOW,
        ("fig4", WIDE, "*"): FAST,
        ("fig[67]", "RED-*", "*"): FAST,
    },
    "train/kl": {("*", "*", "*"): SLOW, ("fig7", "RED-*", "*"): through(0.1, 0.2)},
    "train/clip_fraction": {("*", "*", "*"): teeth(0.02), ("*", "*(0.6, 2.0)", "*"): teeth(0.002)},
    "train/entropy": {("*", "*", "*"): through(0.5, 0.1), ("*", "RED-*", "*"): through(0.5, 0.4)},
    "train/response_length": {
        ("*", "*", "*"): through(20, 40), ("*", "RED-*", "*"): through(20, 25)
    },
}  # fmt: skip
WORLD = {"eval/accuracy": ACCURACY, **OTHERS}
World = dict[str, dict[Cell, Curve]]


def rows_of(figure: str, arm: str, column: str, seed: int, world: World) -> list[dict]:
    def fits(cell: Cell) -> bool:
        return all(map(fnmatchcase, (figure, arm, column), cell))

    curves = {m: [c for cell, c in cells.items() if fits(cell)][-1] for m, cells in world.items()}
    rows: list[dict] = [{"step": step} for step in range(STEPS + 1)]
    for row in rows[::EVERY]:
        row["eval/accuracy"] = curves["eval/accuracy"](row["step"] / STEPS, seed)
    for row in rows[1:]:
        row["train/staleness"] = (row["step"] - 1) % PERIOD
        row |= {metric: curves[metric](row["step"] / STEPS, seed) for metric in OTHERS}
    return rows


def figure_data(
    name: str, world: World = WORLD, seeds: int = SEEDS, state: str = "done"
) -> FigureData:
    runs = [
        Run(
            arm=arm,
            column=column,
            seed=seed,
            path=Path(f"{name}/{arm}/{column}/{seed}"),
            state=state,
            rows=rows_of(name, arm, column, seed, world),
        )
        for column in COLUMNS[name]
        for arm in ARMS[name]
        for seed in range(seeds)
    ]
    return FigureData(
        name=name,
        title=name,
        caption="",
        scale="mini",
        claim_seeds=SEEDS,
        shown=list(range(seeds)),
        arms=ARMS[name],
        columns=COLUMNS[name],
        panels=[],
        runs=runs,
    )


def all_data(**options) -> dict[str, FigureData]:
    return {name: figure_data(name, **options) for name in ARMS}


BASE = all_data()

# Verdicts ----------------------------------------------------------------------------------------


def verdict_on(claim: str, data: dict[str, FigureData]) -> Verdict:
    return judge(next(each for each in claims.CLAIMS if each.id == claim), data, "mini", SEEDS)


def test_curves_that_have_every_property_support_every_claim():
    found = claims.verdicts(BASE, "mini")
    assert [(v.claim.id, v.reasons) for v in found] == [(c.id, []) for c in claims.CLAIMS]
    assert {v.title for v in found} == {"supported at scale mini"}
    assert {v.seeds for v in found} == {"10"}


SPOILED: list[tuple[str, str, str, Cell, Curve]] = [
    # claim, part that fails, metric, cell that is changed, its new curve
    ("on-policy-parity", "learns", "eval/accuracy", ("fig5", "*", ON_POLICY), FLAT),
    ("on-policy-parity", "alike", "eval/accuracy", ("fig5", "RED-Drop", ON_POLICY), SLOW),
    ("on-policy-parity", "alike", "eval/accuracy", ("fig5", WIDE, ON_POLICY), through(0.3, 1, 1)),
    ("reinforce-collapses", "rises", "eval/accuracy", ("*", "REINFORCE", INTERVAL),
     through(0.3, 0.1, 0)),
    ("reinforce-collapses", "then collapses", "eval/accuracy", ("*", "REINFORCE", OFFLINE), FAST),
    ("reinforce-collapses", "dips", "eval/accuracy", ("*", "REINFORCE", OFFSET), FAST),
    ("reinforce-collapses", "and recovers", "eval/accuracy", ("*", "REINFORCE", OFFSET),
     COLLAPSE),
    ("is-not-essential", "alike", "eval/accuracy", ("fig3", NARROW_IS, OFFSET), FLAT),
    ("wide-clip-faster", "learns faster", "eval/accuracy", ("fig3", WIDE, OFFSET), SLOW),
    ("wide-clip-faster", "learns faster", "train/reward", ("fig4", WIDE, "*"), SLOW),
    ("wide-clip-faster", "stable", "eval/accuracy", ("*", WIDE, INTERVAL),
     through(0.3, 1, 1, 1, 0.6, 0.5)),
    ("offline-trade-off", "learns", "eval/accuracy", ("fig3", NARROW, OFFLINE), FLAT),
    ("offline-trade-off", "plateaus early and stays", "eval/accuracy", ("fig3", NARROW, OFFLINE),
     SLOW),
    ("offline-trade-off", "rises higher", "eval/accuracy", ("fig3", WIDE, OFFLINE),
     through(0.3, 0.45, 0.2)),
    ("offline-trade-off", "then declines", "eval/accuracy", ("fig3", WIDE, OFFLINE), FAST),
    ("two-side-fast-then-fragile", "fast at first", "eval/accuracy", ("fig9", TWO_SIDE, OFFSET),
     through(0.3, 0.3, 0.3, 0.2, 0.1)),
    ("two-side-fast-then-fragile", "declines later", "eval/accuracy", ("fig9", TWO_SIDE, OFFLINE),
     through(0.3, 0.8, 0.8, 0.8, 0.75)),
    ("two-side-fast-then-fragile", "not slow", "eval/accuracy", ("fig9", RING, INTERVAL),
     through(0.3, 0.2, 0.2, 0.8, 0.8, 0.8)),
    ("two-side-fast-then-fragile", "steadier", "eval/accuracy", ("fig9", RING, INTERVAL), FRAGILE),
    ("lr-is-no-substitute", "stays ahead", "eval/accuracy", ("fig10", "GRPO*, lr 1e-3", "*"), FAST),
    ("regularised-baselines-hold", "learns", "eval/accuracy", ("fig11", "OPMD*", OFFSET), FLAT),
    ("regularised-baselines-hold", "stable", "eval/accuracy", ("fig11", "AsymRE*", OFFSET),
     through(0.3, 0.8, 0.8, 0.5)),
    ("data-weighting-holds", "stable", "eval/accuracy", ("fig5", "RED-Drop", INTERVAL),
     through(0.3, 1, 1, 1, 0.6, 0.6)),
    ("data-weighting-holds", "comparable", "eval/accuracy", ("fig5", "RED-Weight", INTERVAL), SLOW),
    ("red-weight-less-drift", "higher reward", "train/reward", ("fig6", "RED-*", "*"), SLOW),
    ("red-weight-less-drift", "higher reward on MATH", "train/reward", ("fig7", "RED-*", "*"),
     SLOW),
    ("red-weight-less-drift", "similar KL", "train/kl", ("fig6", "RED-*", "*"), through(0.6, 1.2)),
    ("red-weight-less-drift", "similar KL", "train/kl", ("fig6", "RED-*", "*"), through(0.1, 0.2)),
    ("red-weight-less-drift", "lower KL", "train/kl", ("fig7", "RED-*", "*"), SLOW),
    ("red-weight-less-drift", "stabler entropy", "train/entropy", ("fig7", "RED-*", "*"),
     through(0.9, 0.1)),
    ("red-weight-less-drift", "stabler length", "train/response_length", ("fig7", "RED-*", "*"),
     through(20, 40)),
    ("clip-sawtooth", "a sawtooth", "train/clip_fraction", ("fig9", "GRPO", "*"), teeth(0.02, 7)),
    ("clip-sawtooth", "a sawtooth", "train/clip_fraction", ("fig9", RING, "*"), through(0, 0.02)),
    ("clip-sawtooth", "clips less", "train/clip_fraction", ("fig4", WIDE, "*"), teeth(0.02)),
    ("zero-variance-masking-stabilises", "falls less deeply", "eval/accuracy",
     ("paper2_*", other_papers.MASKED, "*"), through(0.5, 1, 0.5, 1)),
    ("zero-variance-masking-stabilises", "gets higher", "eval/accuracy",
     ("paper2_*", other_papers.MASKED, "*"), FLAT),
    ("on-policy-grpo-unstable", "falls", "eval/accuracy", ("paper2_*", other_papers.FRESH, "*"),
     FAST),
    ("v10-better", "falls less deeply", "eval/accuracy",
     ("paper2_*", other_papers.OLD_MODEL, "*"), through(0.5, 1, 0.5, 1)),
    ("v10-better", "gets higher", "eval/accuracy", ("paper2_*", other_papers.OLD_MODEL, "*"),
     FLAT),
    ("swapped-reference-amplifies", "amplifies", "eval/accuracy",
     ("paper2_*", other_papers.FRESH, "*"), through(0.3, 0.6, 0.5, 0.5, 0.5)),
    ("v10-on-par", "stable", "eval/accuracy", ("paper2_*", other_papers.OLD_MODEL, "*"),
     through(0.3, 1, 1, 0.5)),
    ("v10-on-par", "on par or better", "eval/accuracy", ("paper2_*", other_papers.OLD_MODEL, "*"),
     FLAT),
    ("v10-on-par", "slower", "eval/accuracy", ("paper2_*", other_papers.OLD_DATA, "*"), FAST),
    ("grpo-falls-behind-at-lag-256", "falls behind", "eval/accuracy",
     ("m2po", other_papers.GRPO_STALE, "*"), FAST),
    ("decoupled-ppo-on-par-at-lag-8", "on par", "eval/accuracy",
     ("areal", other_papers.DECOUPLED_STALE, "*"), SLOW),
]  # fmt: skip


@pytest.mark.parametrize(("claim", "part", "metric", "cell", "curve"), SPOILED)
def test_a_spoiled_property_is_found_and_named(claim, part, metric, cell, curve):
    world = {**WORLD, metric: {**WORLD[metric], cell: curve}}
    names = [name for name in ARMS if fnmatchcase(name, cell[0])]
    data = {**BASE, **{name: figure_data(name, world) for name in names}}
    verdict = verdict_on(claim, data)
    assert verdict.title == "contradicted at scale mini"
    failing = {f.check.name for f in verdict.findings if f.outcome is Outcome.contradicted}
    assert failing == {part}
    assert f"{part} (" in verdict.sentence
    assert Outcome.undecided not in {f.outcome for f in verdict.findings}


def test_every_part_of_every_claim_is_spoiled_once():
    parts = {(claim.id, check.name) for claim in claims.CLAIMS for check in claim.checks}
    untested = parts - {(claim, part) for claim, part, *_ in SPOILED}
    assert untested == {("data-weighting-holds", "learns")}  # without it, not comparable either


def test_noise_is_neither_a_rise_nor_a_dip():
    """Of evaluations with a standard error of 0.03; nor is a fall from the start a rise."""
    rng = np.random.default_rng(0)
    noise = {seed: 0.03 * rng.normal(size=STEPS + 1) for seed in range(SEEDS)}

    def noisy(curve: Curve) -> Curve:
        return lambda share, seed: curve(share, 0) + noise[seed][round(share * STEPS)]

    for column, says, curve, allowed in (
        (INTERVAL, "rises", through(0.35, 0.1, 0), {Outcome.contradicted}),
        (INTERVAL, "rises", FLAT, {Outcome.contradicted, Outcome.undecided}),
        (OFFSET, "dips", FLAT, {Outcome.contradicted}),
        (OFFSET, "dips", FAST, {Outcome.contradicted}),
    ):
        world = {**WORLD, "eval/accuracy": {**ACCURACY, ("*", "REINFORCE", column): noisy(curve)}}
        data = {**BASE, **{name: figure_data(name, world) for name in ("fig3", "fig9", "fig11")}}
        verdict = verdict_on("reinforce-collapses", {**data, "fig5": figure_data("fig5", world)})
        outcomes = {f.check.name: f.outcome for f in verdict.findings if f.check.column == column}
        assert outcomes[says] in allowed


def test_noise_about_a_level_is_no_instability_and_no_gain():
    """Of evaluations with a standard error of 0.03; a fall of 0.15 between them is found."""
    rng = np.random.default_rng(0)
    noise = {seed: 0.03 * rng.normal(size=STEPS + 1) for seed in range(SEEDS)}

    def outcomes(curve: Curve) -> dict[str, set[Outcome]]:
        world = {("paper2_*", "*", "*"): lambda share, seed: (
            curve(share, 0) + noise[seed][round(share * STEPS)]
        )}  # fmt: skip
        data = {"paper2_fig2": figure_data("paper2_fig2", {**WORLD, "eval/accuracy": world})}
        return {
            claim: {finding.outcome for finding in verdict_on(claim, data).findings}
            for claim in ("on-policy-grpo-unstable", "swapped-reference-amplifies")
        }

    level = outcomes(FLAT)
    assert Outcome.supported not in level["on-policy-grpo-unstable"]
    assert level["swapped-reference-amplifies"] == {Outcome.undecided}
    falling = outcomes(through(0.3, 0.45, 0.3, 0.45, 0.5))
    assert falling["on-policy-grpo-unstable"] == {Outcome.supported}


# Too little -------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [all_data(state="running"), {}], ids=["unfinished", "none"])
def test_without_a_finished_run_a_claim_is_not_run(data):
    found = {v.claim.id: v for v in claims.verdicts(data, "mini")}
    assert {v.outcome for v in found.values()} == {Outcome.not_run}
    assert found["on-policy-parity"].sentence == "on-policy-parity: not run: no finished runs"
    assert all(f.interval is None for v in found.values() for f in v.findings)


def test_one_seed_decides_nothing_and_a_verdict_says_how_many_there_should_be():
    found = claims.verdicts(all_data(seeds=1), "mini")
    assert {v.outcome for v in found} == {Outcome.undecided}
    assert {v.seeds for v in found} == {"1 of 10"}
    assert all("one seed has no spread" in v.sentence for v in found)
    assert all(f.interval is None for v in found for f in v.findings)


def test_claims_without_runs_wait_for_them_or_for_a_gpu():
    found = {v.claim.id: v for v in claims.verdicts({"fig3": BASE["fig3"]}, "mini")}
    for name in ("zero-variance-masking-stabilises", "v10-on-par"):
        assert found[name].sentence == f"{name}: not run: no finished runs"
    for name in ("grpo-falls-behind-at-lag-256", "decoupled-ppo-on-par-at-lag-8"):
        assert found[name].sentence == f"{name}: not run (needs a GPU)"


def with_accuracies(cells: dict[Cell, Curve]) -> dict[str, FigureData]:
    """The base, but Figure 3 with these curves."""
    world = {**WORLD, "eval/accuracy": {**ACCURACY, **cells}}
    return {**BASE, "fig3": figure_data("fig3", world)}


def test_seeds_that_disagree_do_not_decide_and_the_seeds_that_would_are_named():
    """Gains of ±0.1 in turn, mean 0.02: 2 / √n · 0.1 falls below 0.02 near 100 seeds."""

    def torn(share: float, seed: int) -> float:
        return SLOW(share, 0) + (0.02 + 0.1 * (-1) ** seed) * (share > 0)

    data = with_accuracies(
        {("fig3", WIDE, INTERVAL): torn, ("fig3", NARROW, INTERVAL): lambda x, _: SLOW(x, 0)}
    )
    verdict = verdict_on("wide-clip-faster", data)
    assert verdict.outcome is Outcome.undecided
    (reason,) = verdict.reasons
    words = reason.removeprefix(f"learns faster ({WIDE} − {NARROW}, {INTERVAL}): ").split()
    assert 90 < int(words[0]) < 125
    assert " ".join(words[1:]) == "seeds would decide"


def test_a_contradicted_part_decides_before_one_without_runs():
    world = {**WORLD, "eval/accuracy": {**ACCURACY, ("fig3", WIDE, OFFSET): SLOW}}
    fig3 = figure_data("fig3", world)
    assert verdict_on("wide-clip-faster", {"fig3": fig3}).outcome is Outcome.contradicted
    assert verdict_on("wide-clip-faster", {"fig3": BASE["fig3"]}).outcome is Outcome.not_run


def test_a_finished_run_without_a_number_leaves_the_part_undecided():
    """The seeds that have one would be a selection: a curve of nothing has no final ÷ best."""
    curve = {("fig3", WIDE, INTERVAL): lambda share, seed: 0.0 if seed == 4 else FAST(share, seed)}
    data = with_accuracies(curve)
    data = {"fig3": data["fig3"]}
    findings = verdict_on("wide-clip-faster", data).findings
    finding = next(f for f in findings if f.check.statistic is FINAL_OVER_BEST and f.seeds)
    assert (finding.outcome, finding.why) == (
        Outcome.undecided, "no value at seed 4: a ratio to 0"
    )  # fmt: skip
    assert len(finding.seeds) == 9


# Two arms ---------------------------------------------------------------------------------------


def test_arms_are_compared_seed_by_seed():
    """Luck that a seed brings to both arms widens no interval; a seed of one arm is left out."""
    luck = 0.1 * np.random.default_rng(0).normal(size=SEEDS)
    gains = 0.06 + 0.01 * np.random.default_rng(1).normal(size=SEEDS)
    data = with_accuracies({
        ("fig3", WIDE, INTERVAL): lambda share, seed: SLOW(share, 0) + luck[seed] + gains[seed],
        ("fig3", NARROW, INTERVAL): lambda share, seed: SLOW(share, 0) + luck[seed],
    })["fig3"]  # fmt: skip
    lost = next(r for r in data.runs if (r.arm, r.column, r.seed) == (WIDE, INTERVAL, 1))
    data.runs[data.runs.index(lost)] = dataclasses.replace(lost, state="failed")
    verdict = next(v for v in claims.verdicts_in(data) if v.claim.id == "wide-clip-faster")
    faster = verdict.findings[0]
    kept = np.delete(gains, 1)
    interval = stats.ttest_1samp(kept, 0).confidence_interval(0.95)
    assert (faster.outcome, faster.seeds) == (Outcome.supported, [0, *range(2, SEEDS)])
    assert faster.mean == pytest.approx(kept.mean())
    assert faster.interval == pytest.approx((interval.low, interval.high))
    assert faster.interquartile_mean == pytest.approx(np.sort(kept)[2:-2].mean())
    one, other = np.delete(luck + gains, 1), np.delete(luck, 1)
    pairs = [float(a > b) for a in one for b in other]
    assert faster.improvement == pytest.approx(np.mean(pairs))
    assert 0.5 < np.mean(pairs) < 1


def test_a_ratio_is_taken_on_the_logarithm():
    factors = np.exp(-0.7 + 0.2 * np.random.default_rng(0).normal(size=SEEDS))
    cell = ("fig7", "RED-*", "*")
    kl = {("*", "*", "*"): through(0.4, 0.4), cell: lambda _, seed: factors[seed] * 0.4}
    base = {("*", "*", "*"): lambda *_: 0.4, **{cell: kl[cell]}}
    data = {"fig7": figure_data("fig7", {**WORLD, "train/kl": base})}
    findings = verdict_on("red-weight-less-drift", data).findings
    lower = next(f for f in findings if f.check.name == "lower KL")
    interval = stats.ttest_1samp(np.log(factors), 0).confidence_interval(0.95)
    assert lower.mean == pytest.approx(np.exp(np.log(factors).mean()))
    assert lower.interval == pytest.approx((np.exp(interval.low), np.exp(interval.high)))
    assert (lower.outcome, lower.improvement) == (Outcome.supported, 0)


def test_a_ratio_of_nothing_has_no_logarithm():
    cell = ("fig4", WIDE, "*")
    world = {**WORLD, "train/clip_fraction": {**OTHERS["train/clip_fraction"], cell: FLAT_ZERO}}
    findings = verdict_on("clip-sawtooth", {"fig4": figure_data("fig4", world)}).findings
    less = next(f for f in findings if f.check.name == "clips less")
    assert less.outcome is Outcome.undecided
    assert "not positive" in less.why


def test_runs_of_a_shared_arm_come_from_any_figure_that_holds_it():
    collapse = verdict_on("reinforce-collapses", {"fig11": BASE["fig11"]})
    assert collapse.title == "supported at scale mini"


def test_a_figure_judges_only_what_it_shows():
    found = {v.claim.id: v for v in claims.verdicts_in(BASE["fig5"])}
    assert set(found) == {"on-policy-parity", "reinforce-collapses", "data-weighting-holds"}
    assert {v.outcome for v in found.values()} == {Outcome.supported}
    shown = {f.check.column for f in found["reinforce-collapses"].findings}
    assert shown == {INTERVAL}


# Definitions -------------------------------------------------------------------------------------


OF_CLAIMS = sorted({name for claim in claims.CLAIMS for name in claim.figures})


@pytest.mark.parametrize(
    ("name", "scale"),
    [*((name, "mini") for name in OF_CLAIMS if name in sweeps.names()), ("fig10", "paper")],
)
def test_every_check_finds_its_cells_in_the_sweep(name, scale):
    figure = sweeps.load_figure(name, [f"scale={scale}"])
    cells = {(p.label, figure.heading(p)) for p in sweeps.expand(figure, [f"scale={scale}"])}
    for check in (c for claim in claims.CLAIMS for c in claim.checks if name in c.figures):
        for pattern in filter(None, [check.arm, check.against]):
            fits = {c for c in cells if fnmatchcase(c[0], pattern) and c[1] == check.column}
            assert fits, f"{name}: no {pattern} under {check.column}"


def test_claims_are_those_of_the_papers_and_every_threshold_has_a_reason():
    assert len({claim.id for claim in claims.CLAIMS}) == len(claims.CLAIMS) == 18
    for claim in claims.CLAIMS:
        assert set(claim.figures) == {name for check in claim.checks for name in check.figures}
        assert all(len(check.range.reason) > 20 for check in claim.checks)
        assert claim.quote or "read off" in claim.note
        has_sweep = set(claim.figures) <= set(sweeps.names())
        assert has_sweep != bool(claim.needs)
    ranges = {check.range for claim in claims.CLAIMS for check in claim.checks}
    assert len({each.name for each in ranges}) == len(ranges)


# Files and command line --------------------------------------------------------------------------


@pytest.fixture
def fig5_runs(tmp_path, monkeypatch):
    """Figure 5 with finished runs of ten seeds on disk at scale mini, and a figure without any."""
    data = BASE["fig5"]
    jobs = []
    for number, run in enumerate(data.runs):
        path = write_run(tmp_path / "runs" / str(number), run.rows)
        config = {"seed": run.seed, "steps": run.last_step}
        jobs.append(SimpleNamespace(label=run.arm, heading=run.column, config=config, path=path))

    absent = SimpleNamespace(**{**vars(jobs[0]), "path": tmp_path / "none"})

    def composed(name: str, overrides: tuple[str, ...], for_claims: bool = False):
        panel = SimpleNamespace(metric="eval/accuracy", label="accuracy", log=False)
        scale = "paper" if "scale=paper" in overrides else "mini"
        grid = {"seed": [0, 1, 2]}
        figure = SimpleNamespace(
            title=name, caption="", scale=scale, panels=[panel], grid=grid,
            picture="curves", statistics=[], columns="", map={},
        )  # fmt: skip
        if (name, scale) != ("fig5", "mini"):
            return figure, [absent]
        return figure, [job for job in jobs if for_claims or job.config["seed"] in grid["seed"]]

    monkeypatch.setattr(collect, "composed", composed)
    monkeypatch.setattr(sweeps, "names", lambda: ["fig5", "fig6"])
    return tmp_path


def test_a_figures_files_hold_its_claims(fig5_runs, capsys):
    """Three seeds that agree to the last digit are too few."""
    run_command("figures", *["fig5", f"out={fig5_runs}"])
    printed = capsys.readouterr().out
    found = json.loads((fig5_runs / "fig5.json").read_text())["claims"]
    assert [each["claim"] for each in found] == [
        "on-policy-parity", "reinforce-collapses", "data-weighting-holds"
    ]  # fmt: skip
    assert {each["verdict"] for each in found} <= {"undecided", "supported"}
    assert {(each["seeds"], each["claim_seeds"]) for each in found} == {(3, 10)}
    assert "A quick look at 3 seeds; claims need 10." in printed
    for each in found:
        start = f"{each['claim']}: {each['verdict']} at scale mini, 3 of 10 seeds"
        assert start in printed
        assert start in (fig5_runs / "fig5.txt").read_text()


def test_the_table_is_printed_and_written(fig5_runs, capsys):
    run_command("claims", *[f"out={fig5_runs}/claims.json", "scale=mini"])
    printed = capsys.readouterr().out
    found = {c["claim"]: c for c in json.loads((fig5_runs / "claims.json").read_text())}
    assert len(found) == 18
    assert all(name in printed for name in found)
    first, _, head, *lines = printed.splitlines()
    assert first.startswith("mini: 2 of 18 claims supported, 16 not run; on 10 seeds")
    assert head.split() == ["claim", "mini", "seeds"]
    assert lines[0].split() == ["on-policy-parity", "supported", "10"]
    assert max(map(len, printed.splitlines())) <= 80
    parity = found["on-policy-parity"]
    assert (parity["verdict"], parity["scale"], parity["seeds"]) == ("supported", "mini", 10)
    part = next(p for p in parity["parts"] if p["arms"].startswith("RED-Drop"))
    assert (part["seeds"], part["low"], part["high"]) == ([*range(SEEDS)], -0.05, 0.05)
    assert (part["mean"], part["interquartile_mean"]) == pytest.approx((0, 0))
    assert part["probability_of_improvement"] == 0.5
    assert found["clip-sawtooth"]["reasons"] == ["no finished runs"]
    assert found["clip-sawtooth"]["verdict"] == "not run"


def test_scales_stand_side_by_side(fig5_runs, capsys):
    run_command("claims", *[f"out={fig5_runs}/claims.md", "scale=mini,paper"])
    text = (fig5_runs / "claims.md").read_text()
    assert "| claim | mini | paper | seeds | figures |" in text
    assert "| on-policy-parity | supported | not run | 10, 0 | fig5 |" in text
    assert "| not run (needs a GPU) | not run (needs a GPU) | 0 of 10, 0 | m2po |" in text
    assert text.index("## Scale mini") < text.index("## Scale paper") < text.index("## Thresholds")
    assert "> 0.06 | two standard errors" in text
    assert "“Figure 5 presents GSM8k results […]" in text
    run_command("claims", *[f"out={fig5_runs}/claims.json", "scale=mini,paper"])
    found = json.loads((fig5_runs / "claims.json").read_text())
    assert [each["scale"] for each in found] == ["mini"] * 18 + ["paper"] * 18


def test_every_miniature_is_judged_where_no_scale_is_named(monkeypatch):
    monkeypatch.setattr(claims_command, "scales", lambda: ["large", "mini", "mini_other"])
    asked = []

    def judged(scale, runs, overrides):
        asked.append((scale, overrides))
        return claims.verdicts({}, "mini")

    monkeypatch.setattr(claims_command, "judged", judged)
    run_command("claims", *["seed=0,1"])
    assert asked == [("mini", ["seed=0,1"]), ("mini_other", ["seed=0,1"])]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig5"], "invalid choice: 'fig5'"),
        (["simulate", "seed=0"], "simulate: takes no other arguments"),
        (["scale=tiny"], "scale=tiny: does not exist; allowed, separated by commas: mini"),
        (["out=claims.txt"], "out=claims.txt: the name must end in .json or .md"),
        (["runs=/nowhere"], "runs=/nowhere: no such folder"),
        (["scale=mini", "out=/nowhere/claims.md"], "out=/nowhere/claims.md: cannot be written"),
    ],
)
def test_bad_input_is_one_line(fig5_runs, capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        run_command("claims", *arguments)
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert error.count("\n") == 1
    assert message in error


def test_details_of_a_claim(fig5_runs, capsys):
    run_command("claims", "details=on-policy-parity", "scale=mini")
    printed = capsys.readouterr().out
    assert "learns: REINFORCE, on-policy: supported" in printed
    assert "Runs of an earlier release." in printed
    assert "clip-sawtooth" not in printed
