"""pass@k and the difference of two models, against enumeration and closed forms."""

import math
from itertools import combinations
from statistics import fmean

import pytest

from rec_experiments.common.errors import UserError
from rec_experiments.runs.evaluation import Scores, difference, pass_at_powers


def by_enumeration(k, values):
    """The share of all subsets of k responses with a right one."""
    return fmean(max(subset) for subset in combinations(values, k))


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer():
    answers = [[1.0] * c + [0.0] * (8 - c) for c in range(9)]
    found = pass_at_powers(answers)
    assert list(found) == ["eval/pass@2", "eval/pass@4", "eval/pass@8"]
    for k in (2, 4, 8):
        expected = fmean(by_enumeration(k, values) for values in answers)
        assert found[f"eval/pass@{k}"] == pytest.approx(expected)


def test_pass_at_k_needs_several_answers_that_are_right_or_wrong():
    assert pass_at_powers([[1.0], [0.0]]) == {}
    assert pass_at_powers([[1.0, 0.5], [0.0, 0.0]]) == {}
    assert list(pass_at_powers([[1.0] * 3, [0.0] * 5])) == ["eval/pass@2"]


def scores(means, data="same"):
    return Scores({}, 0.0, 1.0, means, data)


def test_difference_is_paired_by_problem():
    """A constant gap has no uncertainty, however much the problems differ."""
    mean, low, high = difference(scores([0.2, 0.5, 0.9]), scores([0.1, 0.4, 0.8]))
    assert (mean, low, high) == pytest.approx((0.1, 0.1, 0.1))


def test_interval_of_a_difference_is_students():
    gaps = [0.0, 0.25, 0.5, 0.25]
    mean, low, high = difference(scores(gaps), scores([0.0] * 4))
    half = 3.1824463 * math.sqrt(1 / 24) / 2  # t at .975 with 3 degrees of freedom
    assert (mean, low, high) == pytest.approx((0.25, 0.25 - half, 0.25 + half))


def test_different_problems_are_refused():
    with pytest.raises(UserError, match="different problems"):
        difference(scores([1.0]), scores([1.0], data="other"))
