"""What these tests lock: identical arms get a false verdict rarely, and an effect of δ is found."""

import numpy as np
import pytest
from rich.console import Console

from rec_experiments.analysis.claims import CLAIMS, simulation
from rec_experiments.analysis.claims.decision import Direction, Outcome
from rec_experiments.analysis.claims.simulation import CLAIMED, NONE, OPPOSITE


@pytest.fixture(scope="module")
def found():
    rng = np.random.default_rng(0)
    return simulation.simulated(rng, pairs=300, seeds=10, effects=(NONE, CLAIMED, OPPOSITE))


def test_every_kind_of_primary_endpoint_is_simulated(found):
    kinds = {(c.primary.statistic, c.primary.direction, c.primary.factor) for c in CLAIMS}
    assert len(found) == 3 * len(kinds)
    assert {each.endpoint.direction for each in found} == set(Direction)


def test_false_verdicts_are_rare(found):
    """At most 5 %, and with 300 pairs three standard errors more: 8.8 %."""
    for each in found:
        assert each.false <= (0.05 if each.effect == NONE else 0.088), each
        assert sum(each.shares.values()) == pytest.approx(1)


def test_a_claim_that_is_true_is_found(found):
    """An effect of δ for higher and lower, none for alike and not lower."""
    for each in found:
        directed = each.endpoint.direction in (Direction.higher, Direction.lower)
        if each.effect == (CLAIMED if directed else NONE):
            assert each.shares[Outcome.supported] > 0.85, each


def test_three_seeds_find_less():
    rng = np.random.default_rng(0)
    few = simulation.simulated(rng, pairs=50, seeds=3, effects=(CLAIMED,))
    final = next(each for each in few if each.name == "higher: final")
    assert final.shares[Outcome.supported] < 0.8


def test_made_up_runs_are_what_they_say():
    values = simulation.accuracies(np.random.default_rng(0), pairs=400, seeds=5)
    assert values.shape == (400, 3, 5, len(simulation.STEPS))
    np.testing.assert_allclose(values * simulation.PROBLEMS % 1, 0)
    means = values.mean((0, 1, 2))
    assert means[0] == pytest.approx(simulation.START, abs=0.005)
    middle = (simulation.START + simulation.HEIGHT) / 2
    assert means[simulation.STEPS.tolist().index(simulation.MIDPOINT)] == pytest.approx(
        middle, abs=0.01
    )
    one, other = values[:, 0, :, -1].ravel(), values[:, 1, :, -1].ravel()
    assert 0.1 < np.corrcoef(one, other)[0, 1] < 0.5  # what a seed brings to both


def test_the_rates_are_printed(monkeypatch, capsys):
    monkeypatch.setattr(simulation, "PAIRS", 3)
    simulation.show(Console(width=200))
    printed = capsys.readouterr().out
    assert "3 pairs of arms, 10 seeds: identical arms" in printed
    assert "highest false" in printed
    assert "higher: final" in printed
