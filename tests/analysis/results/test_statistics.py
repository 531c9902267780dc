"""Statistics of one run have their closed forms, and intervals over seeds mean what they say."""

import math

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rec_experiments.analysis.results.statistics import (
    STATISTICS,
    NoValue,
    area,
    band,
    by_seed,
    curve,
    interval_of_mean,
    last,
    measured,
    seconds,
)


def of(*values, steps=None):
    return pandas.Series(values, index=steps or range(len(values)), name="m", dtype=float)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("final", (9, 9, 1, 2, 3), 2),
        ("best", (1, 5, 3), 3),
        ("best", (0, 1, 5, 3, 4, 0), 4),
        ("area", (0, 1, 2), 1),
        ("final_minus_initial", (1, 9, 3, 3, 3), 2),
        ("final_minus_best", (1, 8, 9, 7, 2, 2, 2), -6),
        ("second_half", (9, 9, 1, 2, 3), 2),
        ("second_half_minus_initial", (4, 0, 1, 2, 3), -2),
        ("maximum_drawdown", (1, 5, 2, 6, 4), 3),
        ("final_minus_middle_third", (0, 0, 1, 2, 3, 5, 5), 13 / 3 - 2),
        ("lowest", (3, 1, 6, 2), 1),
        ("highest", (3, 1, 6, 2), 6),
        ("median", (3, 1, 6, 2), 2.5),
        ("mean", (3, 1, 6, 2), 3),
    ],
)
def test_closed_forms(name, values, expected):
    measure = STATISTICS[name]
    assert measure(of(*values)) == pytest.approx(expected)
    for lacking in (of(), of(math.nan, math.nan)):
        with pytest.raises(NoValue, match="m was not measured"):
            measure(lacking)


def test_steps_that_are_apart_count_by_their_distance():
    assert area(of(0, 0, 1, steps=[0, 30, 40])) == pytest.approx(5 / 40)
    assert area(of(0.5)) == 0.5


def test_a_curve_that_is_not_finite_somewhere_has_no_statistic():
    """The rest of the curve would be a selection."""
    with pytest.raises(NoValue, match="m is not finite at step 2"):
        measured(of(0.5, math.nan, math.inf))
    assert last(of(0.5, math.nan)) == 0.5


def test_seconds_count_rollouts_as_far_as_training_waited():
    rows = pandas.DataFrame(
        {"time/train": [1.0, 1.0], "time/rollout": [9.0, 9.0], "time/wait": [math.nan, 2.0]}
    )
    assert seconds(rows).tolist() == [10, 3]


@settings(deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=12))
def test_the_interval_is_that_of_students_t(values):
    assert interval_of_mean(values[:1]) is None
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    expected = (np.mean(values) - half, np.mean(values) + half)
    assert interval_of_mean(values) == pytest.approx(expected, abs=1e-9)


@pytest.mark.filterwarnings("error")
def test_a_band_is_the_interval_at_each_step_and_never_changes_its_seeds():
    long, short = of(0.0, 0.2, 0.4, steps=[0, 10, 20]), of(1.0, 1.0, steps=[0, 10])
    found = band(pandas.concat([long, short], axis=1))
    assert found["mean"].to_dict() == pytest.approx({0: 0.5, 10: 0.6})
    for step, pair in ((0, [0.0, 1.0]), (10, [0.2, 1.0])):
        assert tuple(found.loc[step, ["low", "high"]]) == pytest.approx(interval_of_mean(pair))
    assert band(pandas.DataFrame()).empty
    assert band(long.to_frame())["low"].isna().all()


def test_finished_runs_count_once_and_say_why_they_have_no_number():
    runs = [(0, "a", "done", 1.0), (0, "b", "done", 2.0), (1, "c", "running", 3.0)]
    runs += [(2, "d", "done", math.nan), (3, "e", "done", 0.0)]
    steps = pandas.DataFrame(runs, columns=["seed", "run", "state", "m"]).assign(step=0)
    found = by_seed(steps, last, "m")
    assert (found.values, found.without) == ({0: 1.0, 3: 0.0}, {2: "m was not measured"})
    assert found.finished == {0, 2, 3}
    assert curve(steps, "never").isna().all()
