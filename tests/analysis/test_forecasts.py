"""Scores of forecasts, as docs/forecasts.md shows them.

1. A bound decides a forecast only where every value that it allows gives the same answer.
2. Brier scores, also of weighted forecasts, by hand; open forecasts are left out.
3. The probability of an ordering follows its rule.
4. A collapse that follows M · S · η = c is predicted exactly, whether or not S has reached its end.
5. Every forecast can be read: its method, its schedule and its archive have names that exist.
"""

import math

import collapse_times
import forecasts
import numpy as np
import orderings
import pandas
import pytest
import yaml
from archived_runs import COLUMNS, labels
from orderings import Scored

from rec_experiments.analysis.results.stability import RATE, Mean


@pytest.mark.parametrize(
    ("mean", "bound", "between", "expected"),
    [
        (3.0, "", (1, 4), True),
        (5.0, "", (1, 4), False),
        (3.0, "≥", (1, 4), None),
        (5.0, "≥", (1, 4), False),
        (3.0, "≥", (1, math.inf), True),
        (0.5, "≥", (1, math.inf), None),
        (0.5, "≤", (1, 4), False),
        (3.0, "?", (1, math.inf), None),
    ],
)
def test_what_a_bound_decides(mean, bound, between, expected):
    assert forecasts.happened(Mean(mean, None, bound), *between) is expected
    assert forecasts.happened(None, *between) is None


def test_brier_scores_by_hand():
    two = [Scored(0.8, True), Scored(0.6, False), Scored(0.1, None)]
    assert forecasts.score("x", two)[1:] == ["3", "2", "1", "0.200", "0.250", "0.250"]
    weighted = [Scored(0.8, True, 3.0), Scored(0.6, False, 1.0)]
    assert forecasts.score("x", weighted)[4:] == ["0.120", "0.250", "0.188"]
    assert forecasts.share_right(two) == "1 of 2"
    assert forecasts.score("x", two[2:])[1:3] == ["1", "0"]


def row(arm, age, rate, seed, final):
    known = {"arm": arm, "task": "reduction", "age": age, RATE: rate, "seed": seed, "final": final}
    return {**dict.fromkeys(COLUMNS), **known}


def test_the_probability_of_an_ordering(monkeypatch):
    low, high, _ = orderings.RATES
    rows = [
        row("A", 9, low, 0, 0.5), row("B", 0, low, 0, 0.4),    # a win
        row("A", 9, low, 1, 0.4), row("B", 0, low, 1, 0.4),    # a tie
        row("A", 9, high, 0, 0.9), row("B", 4, high, 0, 0.1),  # another age
        row("A", 9, low, 7, 0.9), row("B", 0, low, 7, 0.1),    # another seed than those of the rule
    ]  # fmt: skip
    found = {"stability": pandas.DataFrame(rows), "presets": pandas.DataFrame(rows[:1])}
    monkeypatch.setattr(orderings, "runs", lambda name: found.get(name, pandas.DataFrame()))
    assert orderings.probability("A 9", "B 0") == (1 + 1.5) / (2 + 2)
    assert orderings.probability("B 0", "A 9") == (1 + 0.5) / (2 + 2)
    assert orderings.probability("A 9", "B 49") is None


def test_collapse_times_that_follow_the_law_are_predicted():
    found = pandas.DataFrame({"age": [19, 149, 49], RATE: [1e-4, 1e-4, 2e-5]})
    found["M"] = [0.1 / (19 * 1e-4), np.sqrt(0.1 / 1e-4), 0.1 / (49 * 2e-5)]
    assert collapse_times.constant(found) == pytest.approx(0.1)
    np.testing.assert_allclose(collapse_times.predicted(found, 0.1), found["M"])


def test_every_forecast_names_a_method_and_a_schedule():
    known = {*labels().values()}
    for topic in yaml.safe_load((forecasts.HERE / "forecasts.yaml").read_text()):
        for forecast in topic["forecasts"]:
            low, high = map(float, forecast["between"])
            assert low < high
            assert 0 < forecast["p"] < 1
            parts = [value for value in forecast.values() if isinstance(value, dict)]
            assert {of["arm"] for of in parts} <= known
            assert "nan" not in forecasts.sentence(forecast)
