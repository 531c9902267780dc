"""What these tests lock: intervals over seeds mean what they say.

1. The t interval is that of the textbook.
2. Bands are the same interval at every step, over seeds that never change.
3. Only finished runs count, each seed once, and a run without a number says why.
"""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rec_experiments.analysis.results.aggregate import (
    band,
    finished_values,
    interval_of_mean,
)
from rec_experiments.analysis.results.runs import Run
from rec_experiments.analysis.results.statistics import last

numbers = st.lists(st.floats(-10, 10), min_size=2, max_size=12)


@settings(deadline=None)
@given(numbers)
def test_the_interval_is_that_of_students_t(values):
    found = interval_of_mean(values)
    assert found is not None
    half = stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / np.sqrt(len(values))
    assert found == pytest.approx((np.mean(values) - half, np.mean(values) + half), abs=1e-9)


def test_one_seed_has_no_interval_and_equal_seeds_one_of_width_zero():
    assert interval_of_mean([0.3]) is None
    assert interval_of_mean([]) is None
    assert interval_of_mean([0.25] * 3) == (0.25, 0.25)


def test_a_band_is_the_interval_at_each_step_and_never_changes_its_seeds():
    long, short = ([0, 10, 20], [0.0, 0.2, 0.4]), ([0, 10], [1.0, 1.0])
    found = band([long, short])
    assert found.steps == [0, 10]
    np.testing.assert_allclose(found.mean, [0.5, 0.6])
    assert found.interval is not None
    for at, pair in enumerate(([0.0, 1.0], [0.2, 1.0])):
        ends = found.interval[0][at], found.interval[1][at]
        assert ends == pytest.approx(interval_of_mean(pair))
    assert band([]).steps == []
    assert band([long]).interval is None


def test_finished_runs_count_once_and_say_why_they_have_no_number():
    def run(seed: int, *values: float, state: str = "done") -> Run:
        rows = [{"step": step, "m": value} for step, value in enumerate(values)]
        return Run(arm="", column="", seed=seed, path=Path(), state=state, rows=rows)

    runs = [run(0, 1.0), run(0, 2.0), run(1, 3.0, state="running"), run(2), run(3, 0.0, 0.0)]
    found = finished_values(runs, last, "m")
    assert (found.values, found.without) == ({0: 1.0, 3: 0.0}, {2: "m was not measured"})
    assert found.finished == {0, 2, 3}
