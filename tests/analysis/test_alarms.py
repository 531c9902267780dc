"""An alarm sounds where the median of the last points leaves its range."""

import math
from statistics import median

import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rec_experiments.analysis.alarms import Alarm, package_alarms


def alarm(last: int = 3, first: int | None = None, low=None, high=None) -> Alarm:
    return Alarm(name="x", quantity="q", low=low, high=high, last=last, first=first, why="")


def steps_of(values: list[float | None]) -> pandas.DataFrame:
    """The first row is that of step 0, which nothing is measured at."""
    return pandas.DataFrame(
        {"step": range(len(values) + 1), "train/q": [None, *values]}, dtype=float
    )


values = st.lists(st.none() | st.just(math.inf) | st.floats(0.01, 100), max_size=40)


@given(values, st.integers(1, 5), st.none() | st.integers(1, 6))
@settings(deadline=None, max_examples=50)
def test_the_course_is_the_median_of_the_last_measurements(values, last, first):
    """Against a plain computation, row by row, whatever is missing in between."""
    measured = [
        (step, value) for step, value in enumerate(values, 1)
        if value is not None and math.isfinite(value)
    ]  # fmt: skip
    expected = {}
    for n in range(len(measured)):
        if n + 1 >= last and n + 1 > (first or 0):
            window = [value for _, value in measured[n + 1 - last : n + 1]]
            unit = median([value for _, value in measured[:first]]) if first else 1.0
            expected[measured[n][0]] = median(window) / unit
    assert alarm(last, first).values(steps_of(values)).to_dict() == pytest.approx(expected)


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
    assert alarm(2, first=3).values(steps_of([0, 0, 0, 5, 5])).empty
    for each in package_alarms():
        assert each.message(pandas.DataFrame({"step": [0]})) == ""


def test_the_thresholds_of_the_package():
    alarms = package_alarms()
    level = {"train/ess": 0.6, "train/grad_norm": 0.3, "train/kl": 0.03}
    collapsing = {"train/ess": 0.02, "train/grad_norm": 0.9, "train/kl": 0.5}
    calm = [{"step": step, **level} for step in range(1, 41)]
    fallen = calm + [{"step": step, **collapsing} for step in range(41, 61)]

    def found(rows: list[dict]) -> list[str]:
        return [each.quantity for each in alarms if each.message(pandas.DataFrame(rows))]

    assert found(calm) == found([*calm, {"step": 41, **collapsing}]) == []  # one bad batch
    assert found(fallen) == ["ess", "kl", "grad_norm"]
