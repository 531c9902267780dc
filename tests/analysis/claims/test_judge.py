"""What these tests lock: how endpoints make a verdict.

1. δ is a fifth of the on-policy gain; premises, control and primary endpoint decide in order.
2. Arms are compared seed by seed, ratios on the logarithm.
3. What is missing: runs, seeds, values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from fabricated import figure_of
from scipy import stats

from rec_experiments.analysis.claims.decision import Direction, Outcome
from rec_experiments.analysis.claims.judge import (
    CONTROL,
    GAIN,
    PREMISE,
    PRIMARY,
    Claim,
    Endpoint,
    Finding,
    Setting,
    judge,
)
from rec_experiments.analysis.results.figure import FigureRuns
from rec_experiments.analysis.results.statistics import STATISTICS

Curve = Callable[[int], Sequence[float]]  # of a seed: its evaluations
COLUMN, SEEDS, STEPS = "the column", 10, 100
SETTING = Setting(scale="mini")
SECOND_HALF, FINAL = STATISTICS["second_half"], STATISTICS["final"]
FINAL_MINUS_INITIAL = STATISTICS["final_minus_initial"]
SECOND_HALF_MINUS_INITIAL = STATISTICS["second_half_minus_initial"]
HIGHER, LOWER, ALIKE, NOT_LOWER = Direction
FRESH, PLAIN, CLIPPED = "fresh", "plain", "clipped"


def noisy(*heights: float, spread: float = 0.005, salt: int = 0) -> Curve:
    """Through these heights, shifted after the start by normal noise of each seed."""

    def curve(seed: int) -> list[float]:
        shift = spread * float(np.random.default_rng([salt, seed]).normal())
        return [heights[0], *(height + shift for height in heights[1:])]

    return curve


def figure(
    arms: Mapping[str, Curve], seeds: Sequence[int] = range(SEEDS), state: str = "done"
) -> FigureRuns:
    """A figure whose runs have these values at evenly spaced steps."""

    def rows(values: Sequence[float]) -> list[dict]:
        steps = np.linspace(0, STEPS, len(values)).round()
        return [
            {"step": step, "eval/accuracy": value}
            for step, value in zip(steps, values, strict=True)
        ]

    return figure_of(
        [(arm, COLUMN, seed, state, rows(of(seed))) for arm, of in arms.items() for seed in seeds]
    )


def endpoint(arm: str, against: str = "", **options) -> Endpoint:
    options = {"part": PRIMARY, "statistic": SECOND_HALF, "direction": HIGHER, **options}
    return Endpoint(figure="fig", column=COLUMN, arm=arm, against=against, **options)


CLAIM = Claim(
    id="clipping-helps",
    statement="Clipping helps",
    quote="“It helps.”",
    endpoints=(
        endpoint(CLIPPED, PLAIN),
        endpoint(FRESH, part=GAIN, statistic=FINAL_MINUS_INITIAL),
        endpoint(PLAIN, part=CONTROL, statistic=SECOND_HALF_MINUS_INITIAL, direction=LOWER),
    ),
)


def with_parts(*changed: Endpoint) -> Claim:
    """The claim with these endpoints in place of its own of the same parts."""
    parts = {each.part for each in changed}
    kept = [each for each in CLAIM.endpoints if each.part not in parts]
    endpoints = sorted([*changed, *kept], key=lambda each: each.part != PRIMARY)
    return replace(CLAIM, endpoints=tuple(endpoints))


LEARNS, COLLAPSES = noisy(0.3, 0.5, 0.7, 0.7, 0.7), noisy(0.3, 0.5, 0.1, 0.0, 0.0, salt=1)
SUPPORTING = {FRESH: LEARNS, PLAIN: COLLAPSES, CLIPPED: noisy(0.3, 0.4, 0.5, 0.6, 0.6, salt=2)}


def verdict(arms=SUPPORTING, claim=CLAIM, setting=SETTING, **options):
    return judge(claim, {"fig": figure(arms, **options)}, setting)


def primary(*args, **options) -> Finding:
    return verdict(*args, **options).findings[0]


def test_a_supported_claim_and_its_delta():
    found = verdict()
    assert (found.outcome, found.reasons) == (Outcome.supported, [])
    assert found.sentence == "clipping-helps: supported at mini, 10 seeds"
    first, gain, control = found.findings
    assert gain.mean == pytest.approx(0.4, abs=0.01)
    assert first.delta == pytest.approx(gain.mean / 5)
    assert control.delta == 0
    assert [each.part for each in found.findings] == [
        "primary endpoint", "on-policy gain", "control"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "outcome", "because"),
    [
        ({CLIPPED: noisy(0.3, 0.1, 0.05, 0.0, 0.0)}, Outcome.no_difference, "primary"),
        ({CLIPPED: noisy(0.3, 0.1, 0.0, spread=0.3, salt=4)}, Outcome.undecided, "primary"),
        ({PLAIN: LEARNS}, Outcome.contradicted, "control"),
        ({PLAIN: noisy(0.3, 0.3, 0.3, spread=0.1, salt=4)}, Outcome.undecided, "control"),
        ({PLAIN: noisy(0.9, 0.9, 0.85, 0.8)}, Outcome.contradicted, "primary"),
        ({FRESH: noisy(0.3, 0.2, 0.2)}, Outcome.premise_not_met, "on-policy gain"),
        ({FRESH: noisy(0.3, 0.32, 0.32, spread=0.1)}, Outcome.undecided, "on-policy gain"),
    ],
)  # fmt: skip
def test_what_decides(changed, outcome, because):
    found = verdict({**SUPPORTING, **changed})
    assert found.outcome is outcome
    assert because in found.reasons[0]


def test_a_failed_premise_comes_before_everything():
    """Even before runs that are missing and a contradicted endpoint."""
    absent = endpoint("absent", part=CONTROL)
    found = verdict(claim=with_parts(endpoint(PLAIN, FRESH, part=PREMISE), absent))
    assert found.outcome is Outcome.premise_not_met
    assert found.reasons == ["premise (plain − fresh): contradicted"]
    alike = with_parts(endpoint(FRESH, FRESH, part=PREMISE), absent)
    assert verdict(claim=alike).outcome is Outcome.premise_not_met  # no difference above δ


def test_a_control_that_must_not_be_lower_has_a_margin():
    lower = noisy(0.3, 0.3, 0.45, 0.55, 0.55, salt=2)
    control = endpoint(CLIPPED, "reference", part=CONTROL, direction=NOT_LOWER)
    arms = {**SUPPORTING, CLIPPED: lower, "reference": SUPPORTING[CLIPPED]}
    assert verdict(arms, with_parts(control)).outcome is Outcome.supported


@pytest.mark.parametrize("missing", [FRESH, PLAIN, CLIPPED])
def test_without_runs_a_claim_is_not_run(missing):
    found = verdict({arm: curve for arm, curve in SUPPORTING.items() if arm != missing})
    assert found.outcome is Outcome.not_run
    assert "no finished runs" in found.sentence
    assert judge(CLAIM, {}, SETTING).outcome is Outcome.not_run
    assert verdict(state="running").outcome is Outcome.not_run


def test_without_an_on_policy_run_delta_is_not_known():
    found = verdict({PLAIN: COLLAPSES, CLIPPED: LEARNS})
    assert found.findings[0].delta is None
    assert "without an on-policy run δ is not known" in found.sentence


def test_the_sentence_says_how_many_seeds_there_should_be():
    setting = Setting(scale="mini", rate=1e-4, seeds=range(12))
    found = verdict(setting=setting)
    assert found.sentence == "clipping-helps: supported at mini at 1.0e-04, 10 of 12 seeds"
    assert found.releases == [12]


def test_one_seed_and_few_equal_seeds_decide_nothing():
    assert "one seed has no spread" in verdict(seeds=[0]).sentence
    flat = {arm: lambda seed, curve=curve: curve(0) for arm, curve in SUPPORTING.items()}
    few = verdict(flat, seeds=range(5))
    assert (few.outcome, few.findings[0].interval) == (Outcome.undecided, None)
    assert "5 equal values give no interval; 6 would decide" in few.sentence
    assert verdict(flat, seeds=range(6)).outcome is Outcome.supported


def test_undecided_names_a_range_of_seeds():
    arms = {**SUPPORTING, CLIPPED: noisy(0.3, 0.1, 0.1, 0.1, 0.1, spread=0.2, salt=3)}
    words = primary(arms).why.split()
    low, high = int(words[1]), int(words[3])
    assert 10 < low < high
    assert words[4:] == ["seeds", "would", "decide"]


def test_arms_are_compared_seed_by_seed():
    """Luck that a seed brings to both arms widens no interval; a seed of one arm is left out."""
    luck = 0.1 * np.random.default_rng(0).normal(size=SEEDS)
    gains = 0.3 + 0.01 * np.random.default_rng(1).normal(size=SEEDS)
    data = figure({
        FRESH: LEARNS,
        PLAIN: lambda seed: [0.5, 0.4 + luck[seed]],
        CLIPPED: lambda seed: [0.5, 0.4 + luck[seed] + gains[seed]],
    })  # fmt: skip
    data.steps.loc[(data.steps["arm"] == PLAIN) & (data.steps["seed"] == 1), "state"] = "failed"
    found = judge(CLAIM, {"fig": data}, SETTING).findings[0]
    kept = np.delete(gains, 1)
    interval = stats.ttest_1samp(kept, 0).confidence_interval(0.95)
    assert found.seeds == [0, *range(2, SEEDS)]
    assert found.mean == pytest.approx(kept.mean())
    assert found.interval == pytest.approx((interval.low, interval.high))


RATIO = endpoint(CLIPPED, PLAIN, statistic=FINAL, direction=LOWER, factor=1.25)


def test_a_ratio_is_taken_on_the_logarithm():
    factors = np.exp(-0.7 + 0.1 * np.random.default_rng(0).normal(size=SEEDS))
    arms = {FRESH: LEARNS, PLAIN: lambda _: [0.4], CLIPPED: lambda seed: [0.4 * factors[seed]]}
    found = primary(arms, with_parts(RATIO))
    interval = stats.ttest_1samp(np.log(factors), 0).confidence_interval(0.95)
    assert found.mean == pytest.approx(np.exp(np.log(factors).mean()))
    assert found.interval == pytest.approx((np.exp(interval.low), np.exp(interval.high)))
    assert (found.delta, found.outcome) == (pytest.approx(1.25), Outcome.supported)


def test_a_run_without_a_value_leaves_the_endpoint_undecided():
    """The seeds that have one would be a selection: 0 has no logarithm."""
    arms = {**SUPPORTING, CLIPPED: lambda seed: [0.0 if seed == 4 else 0.1]}
    found = primary(arms, with_parts(RATIO))
    assert found.outcome is Outcome.undecided
    assert found.why == "no value at seed 4: a ratio of numbers that are not positive"


def test_the_first_alternative_that_a_figure_has_counts():
    claim = with_parts(endpoint("other|clip*|plain", PLAIN))
    assert primary(claim=claim).mean == primary().mean


def test_a_claim_whose_figure_sets_rates_is_judged_at_the_usual_one():
    claim, elsewhere = replace(CLAIM, own_rate_only=True), Setting(scale="mini", own=False)
    assert verdict(claim=claim).outcome is Outcome.supported
    assert verdict(claim=claim, setting=elsewhere).outcome is Outcome.not_run


def test_the_card_says_when_the_control_contradicts():
    above = verdict({**SUPPORTING, PLAIN: LEARNS, CLIPPED: noisy(0.3, 0.8, 0.95, 0.95, salt=2)})
    assert above.findings[0].outcome is Outcome.supported
    assert above.short == "contradicted by its control"
    below = verdict({**SUPPORTING, PLAIN: noisy(0.9, 0.9, 0.85, 0.8)})
    assert below.findings[0].outcome is Outcome.contradicted
    assert below.short == "contradicted"
    assert verdict().short == "supported"
