"""What these tests lock: an alarm sounds where the median of the last points leaves its range.

1. Values against a plain computation, row by row, whatever is missing in between.
2. The step since which it sounds.
3. A run that is too short, or whose first values are 0, says nothing.
4. The thresholds of the package: a run that collapses sounds, a level one does not.
"""

import math
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rec_experiments.analysis.regime.alarms import (
    Alarm,
    active_alarms,
    package_alarms,
    values_of,
)


def alarm(last: int = 3, first: int | None = None, low=None, high=None) -> Alarm:
    return Alarm(name="x", quantity="q", low=low, high=high, last=last, first=first, why="")


def rows_of(values: list[float | None]) -> list[dict]:
    """The first row is that of step 0, which nothing is measured at."""
    rows: list[dict] = [{"step": 0}]
    rows += [{"step": step, "train/q": value} for step, value in enumerate(values, 1)]
    return rows


values = st.lists(st.none() | st.just(math.nan) | st.floats(0.01, 100), max_size=40)


@given(values, st.integers(1, 5), st.none() | st.integers(1, 6))
@settings(deadline=None)
def test_the_course_is_the_median_of_the_last_measurements(values, last, first):
    measured = [
        (step, value) for step, value in enumerate(values, 1)
        if value is not None and not math.isnan(value)
    ]  # fmt: skip
    expected = {}
    for n in range(len(measured)):
        if n + 1 >= last and n + 1 > (first or 0):
            window = [value for _, value in measured[n + 1 - last : n + 1]]
            unit = median([value for _, value in measured[:first]]) if first else 1.0
            expected[measured[n][0]] = median(window) / unit
    steps, found = values_of(rows_of(values), alarm(last, first))
    assert steps == list(expected)
    assert found == pytest.approx(list(expected.values()))


def test_since_when():
    rows = rows_of([1, 1, 1, 9, 9, 9, 1, 1, 1, 9, 9, 9, 9])
    high = alarm(3, high=5.0)
    [found] = active_alarms(rows, [high, alarm(3, low=0.5)])
    assert (found.alarm, found.value, found.since) == (high, 9.0, 11)
    assert active_alarms(rows[:10], [high]) == []
    [whole] = active_alarms(rows_of([9, 9, 9]), [high])
    assert whole.since == 3


def test_a_run_without_enough_says_nothing():
    assert values_of(rows_of([1, 2]), alarm(3)) == ([], [])
    assert values_of([], alarm(1)) == ([], [])
    assert values_of(rows_of([0, 0, 0, 5, 5]), alarm(2, first=3)) == ([], [])


def test_the_thresholds_of_the_package():
    alarms = package_alarms()
    assert {each.quantity for each in alarms} == {"ess", "grad_norm", "kl"}
    level = {"train/ess": 0.6, "train/grad_norm": 0.3, "train/kl": 0.03}
    collapsing = {"train/ess": 0.02, "train/grad_norm": 0.9, "train/kl": 0.5}
    calm = [{"step": step, **level} for step in range(1, 41)]
    assert active_alarms(calm, alarms) == []
    fallen = calm + [{"step": step, **collapsing} for step in range(41, 61)]
    assert [each.alarm.quantity for each in active_alarms(fallen, alarms)] == [
        "ess",
        "kl",
        "grad_norm",
    ]
    one_bad_batch = [*calm, {"step": 41, **collapsing}]
    assert active_alarms(one_bad_batch, alarms) == []
