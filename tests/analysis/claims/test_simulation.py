"""What these tests lock: arms that do not differ are not told apart, arms that do are.

A false decision is a check that says there is a difference (higher, lower, less) and is supported,
or one that says there is none that matters (alike, not lower, similar) and is contradicted.
"""

import numpy as np
import pytest
from rich.console import Console

from rec_experiments.analysis.claims import CLAIMS, simulation
from rec_experiments.analysis.claims.decision import Outcome
from rec_experiments.analysis.claims.definitions import (
    ALIKE,
    HIGHER,
    LESS,
    LOWER,
    NOT_LOWER,
    SIMILAR,
)
from rec_experiments.analysis.results.statistics import AREA_UNDER_CURVE


def test_every_kind_of_check_of_two_arms_is_simulated():
    checks = simulation.two_arm_checks()
    used = {check.range for claim in CLAIMS for check in claim.checks if check.against}
    assert {check.range for check in checks} == used
    assert used == {ALIKE, HIGHER, LESS, LOWER, NOT_LOWER, SIMILAR}
    wrong = {check.range.name for check in checks if simulation.wrong(check) is Outcome.supported}
    assert wrong == {"higher", "less", "lower"}


def test_at_most_a_twentieth_of_a_thousand_equal_pairs_is_decided_for_a_difference():
    checks = simulation.two_arm_checks()
    found = simulation.outcomes(checks, np.random.default_rng(0), pairs=1000, seeds=10)
    for check in checks:
        outcomes = found[simulation.name(check)]
        assert len(outcomes) == 1000
        assert sum(each is simulation.wrong(check) for each in outcomes) <= 50, check
        if simulation.wrong(check) is Outcome.supported:  # they can be decided so at all
            assert simulation.wrong(check) in outcomes


def test_ten_seeds_find_what_three_do_not():
    """And whole curves that are equal are found to be alike."""
    checks = [c for c in simulation.two_arm_checks() if c.statistic is AREA_UNDER_CURVE]
    higher = [check for check in checks if check.range is HIGHER]
    alike = [check for check in checks if check.range is ALIKE]

    def supported(checks, seeds, gain) -> float:
        rng = np.random.default_rng(0)
        [outcomes] = simulation.outcomes(checks, rng, 100, seeds, gain).values()
        return float(np.mean([each is Outcome.supported for each in outcomes]))

    assert supported(higher, 10, 0.05) > 0.8
    assert supported(higher, 3, 0.05) < 0.5
    assert supported(alike, 10, 0.0) > 0.9
    assert supported(alike, 10, 0.1) == 0


def test_made_up_runs_are_what_they_say():
    values = simulation.accuracies(np.random.default_rng(0), pairs=400, seeds=5, gain=0.1)
    assert values.shape == (400, 2, 5, len(simulation.STEPS))
    np.testing.assert_allclose(values * simulation.PROBLEMS % 1, 0)
    means = values.mean((0, 2))
    assert means[:, 0] == pytest.approx(simulation.START, abs=0.005)
    assert means[0, 1:] - means[1, 1:] == pytest.approx(0.1, abs=0.01)
    half_way = simulation.STEPS.tolist().index(simulation.MIDPOINT)
    middle = (simulation.START + simulation.HEIGHT) / 2
    assert means[1, half_way] == pytest.approx(middle, abs=0.01)
    one, other = values[:, 0, :, -1].ravel(), values[:, 1, :, -1].ravel()
    assert 0.1 < np.corrcoef(one, other)[0, 1] < 0.5  # what a seed brings to both


def test_the_rates_are_printed(monkeypatch, capsys):
    monkeypatch.setattr(simulation, "PAIRS", 3)
    simulation.show(Console(width=120))
    printed = capsys.readouterr().out
    assert "3 pairs of equal arms, 10 seeds" in printed
    assert "3 runs of a policy that never changes, 11 evaluations" in printed
    assert "`higher: area under the curve (mean), difference` is supported" in printed
