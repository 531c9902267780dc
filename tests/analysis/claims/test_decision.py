"""What these tests lock: what an interval over seeds says about an endpoint."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rec_experiments.analysis.claims.decision import (
    ROUNDING,
    Direction,
    Outcome,
    decide,
    interval,
    seeds_to_decide,
)

HIGHER, LOWER, ALIKE, NOT_LOWER = Direction
SUPPORTED, CONTRADICTED, NO_DIFFERENCE = list(Outcome)[:3]
UNDECIDED = Outcome.undecided
DELTA = 0.05


@pytest.mark.parametrize(
    ("ends", "higher", "alike", "not_lower"),
    [
        ((0.06, 0.2), SUPPORTED, CONTRADICTED, SUPPORTED),
        ((0.01, 0.2), SUPPORTED, UNDECIDED, SUPPORTED),
        ((0.01, 0.04), NO_DIFFERENCE, SUPPORTED, SUPPORTED),
        ((-0.04, 0.04), NO_DIFFERENCE, SUPPORTED, SUPPORTED),
        ((-0.01, 0.2), UNDECIDED, UNDECIDED, SUPPORTED),
        ((-0.2, 0.2), UNDECIDED, UNDECIDED, UNDECIDED),
        ((-0.2, 0.01), UNDECIDED, UNDECIDED, UNDECIDED),
        ((-0.2, -0.01), CONTRADICTED, UNDECIDED, UNDECIDED),
        ((-0.2, -0.06), CONTRADICTED, CONTRADICTED, CONTRADICTED),
        # exactly at δ, at −δ and at zero
        ((0.01, DELTA), UNDECIDED, UNDECIDED, SUPPORTED),
        ((DELTA, 0.2), SUPPORTED, CONTRADICTED, SUPPORTED),
        ((-DELTA, -0.01), UNDECIDED, UNDECIDED, UNDECIDED),
        ((-0.2, -DELTA), CONTRADICTED, CONTRADICTED, CONTRADICTED),
        ((-DELTA, DELTA), UNDECIDED, UNDECIDED, UNDECIDED),
        ((ROUNDING, 0.2), UNDECIDED, UNDECIDED, SUPPORTED),
        ((-0.2, -ROUNDING), UNDECIDED, UNDECIDED, UNDECIDED),
    ],
)
def test_outcomes_of_an_interval(ends, higher, alike, not_lower):
    assert decide(ends, DELTA, HIGHER) is higher
    assert decide((-ends[1], -ends[0]), DELTA, LOWER) is higher
    assert decide(ends, DELTA, ALIKE) is alike
    assert decide((-ends[1], -ends[0]), DELTA, ALIKE) is alike
    assert decide(ends, DELTA, NOT_LOWER) is not_lower


@pytest.mark.parametrize("end", [0.0, 1e-17, -1e-17])
def test_rounding_is_no_effect(end):
    assert decide((end, end), 0, HIGHER) is UNDECIDED
    assert decide((end, end), DELTA, HIGHER) is NO_DIFFERENCE
    assert decide((end, end), DELTA, ALIKE) is SUPPORTED


def test_a_delta_of_zero_asks_for_the_sign():
    assert decide((0.001, 0.002), 0, HIGHER) is SUPPORTED
    assert decide((-0.002, -0.001), 0, HIGHER) is CONTRADICTED
    assert decide((-0.001, 0.001), 0, HIGHER) is UNDECIDED


def test_six_equal_values_are_an_interval():
    assert interval([0.3]) is interval([]) is interval([0.3] * 5) is None
    assert interval([0.3] * 6) == pytest.approx((0.3, 0.3))
    assert interval([0.3, 0.3 + 1e-17] * 3) == pytest.approx((0.3, 0.3))


def test_the_range_of_seeds_comes_from_the_interval_of_the_variance():
    values = np.array([-0.1, 0.1] * 5) + 0.03
    spread = values.std(ddof=1)

    def first(sigma: float) -> int:
        """By trying: the smallest n whose t interval lies below δ or above 0."""
        for n in range(2, 1001):
            half = stats.t.ppf(0.975, n - 1) * sigma / math.sqrt(n)
            if 0.03 - half > 0 or (0.03 + half < DELTA and 0.03 - half > -DELTA):
                return n
        raise AssertionError

    ends = [first(spread * math.sqrt(9 / stats.chi2.ppf(share, 9))) for share in (0.975, 0.025)]
    assert seeds_to_decide(list(values), DELTA, HIGHER) == tuple(max(end, 11) for end in ends)


@pytest.mark.parametrize(
    "values", [[0.1, 0.2], [0.3] * 4, [-1.0, 1.0, -1.0, 1.0]], ids=["two", "equal", "too many"]
)
def test_no_range_of_seeds_is_given_where_there_is_none(values):
    assert seeds_to_decide(values, 0.001, HIGHER) is None


@settings(deadline=None)
@given(
    mean=st.floats(-0.3, 0.3), half=st.floats(0, 1), shrink=st.floats(0, 1),
    direction=st.sampled_from(Direction),
)  # fmt: skip
def test_a_narrower_interval_stays_decided(mean, half, shrink, direction):
    wide = decide((mean - half, mean + half), DELTA, direction)
    half *= shrink
    narrow = decide((mean - half, mean + half), DELTA, direction)
    if wide is not UNDECIDED and abs(abs(mean) - DELTA) > 1e-6 and abs(mean) > 1e-6:
        assert narrow is not UNDECIDED
        assert {wide, narrow} != {SUPPORTED, CONTRADICTED}
