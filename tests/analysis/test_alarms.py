"""Signs of a collapse.

1. An alarm sounds where the median of the last points leaves its range.
2. The signs of the early warning are those of the first evaluation after a fifth of the steps.
3. Lost accuracy and drift each raise the chance; a run that has lost nothing is not warned of.
4. The fit finds coefficients that made the data.
"""

import math
from statistics import median

import early_warning as fitting
import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rec_experiments.analysis.alarms import (
    ALARMS,
    DRIFT,
    EARLY_WARNING,
    Alarm,
    Coefficients,
    Signs,
    signs,
    warning,
)
from rec_experiments.analysis.results.statistics import ACCURACY


def alarm(last: int = 3, low=None, high=None) -> Alarm:
    return Alarm(name="x", quantity="q", low=low, high=high, last=last, why="")


def steps_of(values: list[float | None]) -> pandas.DataFrame:
    """The first row is that of step 0, which nothing is measured at."""
    return pandas.DataFrame(
        {"step": range(len(values) + 1), "train/q": [None, *values]}, dtype=float
    )


values = st.lists(st.none() | st.just(math.inf) | st.floats(0.01, 100), max_size=40)


@given(values, st.integers(1, 5))
@settings(deadline=None, max_examples=50)
def test_the_course_is_the_median_of_the_last_measurements(values, last):
    """Against a plain computation, row by row, whatever is missing in between."""
    measured = [
        (step, value) for step, value in enumerate(values, 1)
        if value is not None and math.isfinite(value)
    ]  # fmt: skip
    expected = {
        measured[n][0]: median(value for _, value in measured[n + 1 - last : n + 1])
        for n in range(last - 1, len(measured))
    }
    assert alarm(last).values(steps_of(values)).to_dict() == pytest.approx(expected)


def test_since_when():
    steps = steps_of([1, 1, 1, 9, 9, 9, 1, 1, 1, 9, 9, 9, 9])
    high = alarm(3, high=5.0)
    assert high.message(steps) == "x 9 since step 11, should be at most 5"
    assert alarm(3, low=0.5).message(steps) == ""
    assert high.message(steps[:10]) == ""
    assert high.message(steps_of([9, 9, 9])) == "x 9 since step 3, should be at most 5"


def test_a_run_without_enough_says_nothing():
    assert alarm(3).values(steps_of([1, 2])).empty
    assert alarm(1).values(steps_of([])).empty
    for each in ALARMS:
        assert each.message(pandas.DataFrame({"step": [0]})) == ""


def test_the_thresholds_of_the_package():
    level = {"train/ess": 0.6, "train/kl": 0.03}
    collapsing = {"train/ess": 0.02, "train/kl": 0.5}
    calm = [{"step": step, **level} for step in range(1, 41)]
    fallen = calm + [{"step": step, **collapsing} for step in range(41, 61)]

    def found(rows: list[dict]) -> list[str]:
        return [each.quantity for each in ALARMS if each.message(pandas.DataFrame(rows))]

    assert found(calm) == found([*calm, {"step": 41, **collapsing}]) == []  # one bad batch
    assert found(fallen) == ["ess", "kl"]


# The early warning --------------------------------------------------------------------------------


def rows(accuracy: dict[int, float], drift: dict[int, float]) -> pandas.DataFrame:
    steps = sorted({*accuracy, *drift})
    values = {"step": steps, ACCURACY: map(accuracy.get, steps), DRIFT: map(drift.get, steps)}
    return pandas.DataFrame(values, dtype=float)


RUN = rows({0: 0.4, 10: 0.5, 20: 0.1, 30: 0.4}, {10: 7.0, 15: 0.01, 20: 0.03, 30: 9.0})


def test_signs_are_those_after_a_fifth_of_the_steps():
    assert signs(RUN, 100) == pytest.approx(Signs(20, 0.75, np.log10(0.02)))
    assert signs(RUN, 50) == pytest.approx(Signs(10, -0.25, np.log10(7.0)))


@pytest.mark.parametrize(
    "run",
    [
        rows({0: 0.4, 10: 0.5}, {10: 1.0}),    # too early
        rows({0: 0.0, 20: 0.1}, {20: 1.0}),    # nothing to lose
        rows({0: 0.4, 20: 0.1}, {20: 1e-15}),  # fresh data
        rows({0: 0.4, 20: 0.1}, {10: 1.0, 20: np.inf}).drop(index=1),  # nothing finite
        pandas.DataFrame({"step": [0]}),
    ],
)  # fmt: skip
def test_no_signs(run):
    assert signs(run, 100) is None
    assert warning(run, 100) is None


def test_what_raises_the_chance():
    chance = EARLY_WARNING.chance
    assert chance(Signs(20, 0.9, -1)) > chance(Signs(20, 0.5, -1)) > chance(Signs(20, 0.5, -3))
    assert "at step 20 it has lost 75% of its first accuracy" in warning(RUN, 100)
    assert warning(RUN, 50) is None


def test_the_fit_finds_what_made_the_data():
    generator = np.random.default_rng(0)
    made = Coefficients(-1.0, 4.0, 1.5, fitting.AT_LEAST)
    values = generator.normal(size=(20_000, 2))
    chances = [made.chance(Signs(0, *each)) for each in values]
    found = pandas.DataFrame(values, columns=["lost", "log_drift"])
    found["fails"] = generator.random(len(found)) < chances
    np.testing.assert_allclose(fitting.fit(found), made, atol=0.1)


def test_auc():
    fails = pandas.Series([True, False, True, False])
    assert fitting.auc(pandas.Series([3, 1, 2, 2]), fails) == (2 + 1.5) / 4
