"""The chance that a run fails, from its first fifth.

1. The signs are those of the first evaluation after a fifth of the steps, and nothing later counts.
2. Lost accuracy and drift each raise the chance; a run that has lost nothing is not warned of.
3. The fit finds coefficients that made the data.
"""

import early_warning as fitting
import numpy as np
import pandas
import pytest

from rec_experiments.analysis.early_warning import (
    ACCURACY,
    DRIFT,
    Coefficients,
    Signs,
    coefficients,
    signs,
    warning,
)


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
    chance = coefficients().chance
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
