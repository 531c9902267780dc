"""What these tests lock: what decides, decides as often as it says.

1. The whole interval in the range supports, the whole interval outside contradicts.
2. Many true parts of one claim do not contradict it by chance.
3. Equal values decide from six seeds on.
4. The number of seeds that would decide is the first that does.
"""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rec_experiments.analysis.claims.decision import (
    MOST_SEEDS,
    Outcome,
    Range,
    decide,
    seeds_to_decide,
)

SUPPORTED, CONTRADICTED = Outcome.supported, Outcome.contradicted
UNDECIDED = Outcome.undecided


def a_range(low: float = -math.inf, high: float = math.inf) -> Range:
    return Range(name="", reason="", low=low, high=high)


@pytest.mark.parametrize(
    ("low", "high", "interval", "outcome"),
    [
        (0.05, math.inf, (0.06, 0.2), SUPPORTED),
        (0.05, math.inf, (0.04, 0.2), UNDECIDED),
        (0.05, math.inf, (-0.2, 0.04), CONTRADICTED),
        (-math.inf, 0.5, (0.1, 0.4), SUPPORTED),
        (-math.inf, 0.5, (0.51, 0.6), CONTRADICTED),
        (-0.05, 0.05, (-0.04, 0.04), SUPPORTED),
        (-0.05, 0.05, (-0.04, 0.06), UNDECIDED),
        (-0.05, 0.05, (-0.2, 0.2), UNDECIDED),
        (-0.05, 0.05, (-0.2, -0.06), CONTRADICTED),
    ],
)
def test_a_range_needs_the_whole_interval(low, high, interval, outcome):
    mean, half = sum(interval) / 2, (interval[1] - interval[0]) / 2
    spread = half * math.sqrt(10) / stats.t.ppf(0.975, 9)
    assert decide(10, mean, spread, a_range(low, high), 1) is outcome


def test_the_end_of_a_range_is_outside():
    assert decide(10, 0.0, 0.0, a_range(low=0), 1) is CONTRADICTED
    assert decide(10, 1e-6, 0.0, a_range(low=0), 1) is SUPPORTED


@pytest.mark.parametrize("mean", [-1e-17, 0.0, 1e-17])
@pytest.mark.parametrize("spread", [0.0, 3e-17])
def test_what_rounding_adds_to_no_difference_decides_nothing(mean, spread):
    """A mean of three points may differ in its last digit from one of the same in another order."""
    assert decide(10, mean, spread, a_range(low=0), 1) is CONTRADICTED
    assert decide(10, mean, spread, a_range(high=0), 1) is CONTRADICTED
    assert decide(10, mean, spread, a_range(low=-0.05, high=0.05), 1) is SUPPORTED


@pytest.mark.parametrize("parts", [1, 10])
def test_a_true_claim_is_contradicted_in_a_twentieth_of_cases_at_most(parts):
    """Ten seeds, every part's true mean just inside its range: what would contradict most often."""
    claims, seeds = 2000, 10
    values_CPS = np.random.default_rng(0).normal(size=(claims, parts, seeds))
    means_CP, spreads_CP = values_CPS.mean(-1), values_CPS.std(-1, ddof=1)

    def share(judged_as: int) -> float:
        outcomes = [
            {decide(seeds, *pair, a_range(low=0), judged_as) for pair in zip(*each, strict=True)}
            for each in zip(means_CP, spreads_CP, strict=True)
        ]
        return sum(CONTRADICTED in found for found in outcomes) / claims

    assert 0.015 < share(parts) < 0.035
    if parts > 1:
        assert share(1) > 0.15  # each part for itself


@settings(deadline=None)
@given(
    seeds=st.integers(2, 30),
    mean=st.floats(-1, 1),
    spread=st.floats(0.001, 1),
    parts=st.integers(1, 30),
)
def test_support_does_not_depend_on_the_number_of_parts_and_contradiction_only_falls(
    seeds, mean, spread, parts
):
    alone = decide(seeds, mean, spread, a_range(-0.1, 0.1), 1)
    among = decide(seeds, mean, spread, a_range(-0.1, 0.1), parts)
    assert among is alone or (alone, among) == (CONTRADICTED, UNDECIDED)


@pytest.mark.parametrize(
    ("seeds", "parts", "value", "outcome"),
    [
        (5, 1, 0.0, UNDECIDED),
        (6, 1, 0.0, SUPPORTED),
        (3, 1, 1.0, UNDECIDED),
        (6, 1, 1.0, CONTRADICTED),
        (6, 10, 1.0, UNDECIDED),  # for 5 % / 10 it takes nine
        (9, 10, 1.0, CONTRADICTED),
    ],
)
def test_equal_values_decide_from_six_seeds_on(seeds, parts, value, outcome):
    """2^(1−n) is at most 5 % from n = 6 on."""
    assert decide(seeds, value, 0.0, a_range(high=0.5), parts) is outcome
    assert decide(seeds, value, 1e-17, a_range(high=0.5), parts) is outcome  # rounding


@settings(deadline=None)
@given(
    mean=st.floats(-0.3, 0.3),
    spread=st.one_of(st.just(0.0), st.floats(0.001, 1)),
    parts=st.integers(1, 20),
)
def test_the_seeds_that_would_decide_are_the_first_that_do(mean, spread, parts):
    found = seeds_to_decide(mean, spread, a_range(low=0.1), parts)
    last = found - 1 if found else MOST_SEEDS
    if found:
        assert decide(found, mean, spread, a_range(low=0.1), parts) is not UNDECIDED
    for seeds in {2, last // 2, last} - {0, 1}:
        if seeds <= last:
            assert decide(seeds, mean, spread, a_range(low=0.1), parts) is UNDECIDED


def test_seeds_that_would_decide_in_numbers():
    """A mean of one standard deviation is above 0 from seven seeds on: t₆ / √7 = 0.92."""
    assert seeds_to_decide(1.0, 1.0, a_range(low=0), 1) == 7
    assert seeds_to_decide(0.0, 0.0, a_range(high=1), 1) == 6
    assert seeds_to_decide(0.0, 1.0, a_range(low=0), 1) is None


def test_the_logarithm_of_a_range():
    found = a_range(low=1 / 1.5, high=1.5).logarithm()
    assert (found.low, found.high) == pytest.approx((-math.log(1.5), math.log(1.5)))
    assert a_range(high=1).logarithm() == a_range(high=0)
    assert [str(a_range(high=1)), str(a_range(low=0)), str(a_range(-1, 1))] == [
        "< 1", "> 0", "-1 to 1"
    ]  # fmt: skip
