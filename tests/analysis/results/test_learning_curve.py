"""What these tests lock: a fitted curve is the curve, or there is none and it says why.

1. A curve of the form is found again, exactly without noise, closely with that of an evaluation.
2. Height and speed are told apart where an average over the curve takes one for the other.
3. What no such curve describes has no fit: too short, flat, falling, collapsing, or not yet bent.
"""

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rec_experiments.analysis.results import learning_curve
from rec_experiments.analysis.results.learning_curve import fit
from rec_experiments.analysis.results.runs import Row
from rec_experiments.analysis.results.statistics import NoValue, area_under_curve

STEPS = np.arange(0, 151, 10)
START = 0.3


def form(asymptote: float, midpoint: float, exponent: float) -> np.ndarray:
    return START + (asymptote - START) / (1 + (midpoint / np.maximum(STEPS, 1e-9)) ** exponent)


def rows(values, first_step: int = 0) -> list[Row]:
    return [
        {"step": first_step + step, "m": float(value)}
        for step, value in zip(STEPS.tolist(), values, strict=False)
    ]


@settings(deadline=None, max_examples=30)
@given(
    asymptote=st.floats(0.5, 0.95),
    midpoint=st.floats(15, 80),
    exponent=st.floats(0.8, 5),
    first_step=st.sampled_from([0, 1]),
)
def test_a_curve_of_the_form_is_found_again(asymptote, midpoint, exponent, first_step):
    values = form(asymptote, midpoint, exponent)
    assume(values[-3:].mean() - START > 2 * learning_curve.SMALLEST_RISE)
    found = fit(rows(values, first_step), "m")
    assert found.asymptote == pytest.approx(asymptote, abs=1e-3)
    assert found.midpoint == pytest.approx(midpoint, rel=1e-2)
    assert found.exponent == pytest.approx(exponent, rel=1e-2)


def test_noise_of_an_evaluation_moves_it_little():
    true = form(0.8, 30, 2.5)
    noisy = np.random.default_rng(0).binomial(256, true, size=(50, len(true))) / 256
    found = np.array([astuple(fit(rows(values), "m")) for values in noisy])
    assert found.mean(0) == pytest.approx([0.8, 30, 2.5], rel=0.1)
    assert found.std(0)[0] < 0.03
    assert found.std(0)[1] < 6


def test_height_and_speed_are_told_apart():
    """Two curves with the same average: one is fast and low, one is slow and high."""
    fast, slow = rows(form(0.6, 12, 3)), rows(form(0.75, 51, 3))
    assert area_under_curve(fast, "m") == pytest.approx(area_under_curve(slow, "m"), abs=0.01)
    of_fast, of_slow = fit(fast, "m"), fit(slow, "m")
    assert of_fast.asymptote < of_slow.asymptote
    assert of_fast.midpoint < of_slow.midpoint
    assert of_fast.exponent == pytest.approx(3, rel=0.05)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([0.3, 0.5, 0.6, 0.7], "4 points are too few for a fit"),
        (np.full(16, 0.3), "the curve does not rise"),
        (0.3 - STEPS / 1000, "the curve does not rise"),
        (np.where(STEPS < 80, 0.3 + STEPS / 200, 0), "the curve does not rise"),
        (np.where(STEPS < 80, 0.3 + STEPS / 200, 0.4), "the curve falls after its best"),
        (0.3 + (STEPS / 150) ** 2 * 0.3, "the curve has not passed half of its rise"),
        (np.where(STEPS < 10, 0.3, 0.8), "half of the rise lies before the second point"),
        (0.3 + STEPS / 300, "the asymptote is not determined"),
    ],
)
def test_what_the_curve_does_not_describe_has_none(values, reason):
    with pytest.raises(NoValue, match=reason):
        fit(rows(values), "m")


def test_a_fit_that_does_not_converge_has_none(monkeypatch):
    def no_convergence(*_, **__):
        raise RuntimeError("Optimal parameters not found")

    monkeypatch.setattr("scipy.optimize.curve_fit", no_convergence)
    with pytest.raises(NoValue, match="the fit does not converge"):
        fit(rows(form(0.77, 33, 2.21)), "m")  # of no other test: fits are kept
