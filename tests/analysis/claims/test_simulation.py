"""What these tests lock: identical arms get a false verdict rarely, and an effect of δ is found."""

import numpy as np
import pytest
import simulation
from rich.console import Console

from rec_experiments.analysis.claims import CLAIMS
from rec_experiments.analysis.claims.decision import Direction, Outcome


@pytest.fixture(scope="module")
def found():
    rng = np.random.default_rng(0)
    return simulation.simulated(rng, pairs=300, seeds=10)


def test_every_kind_of_primary_endpoint_is_simulated(found):
    kinds = {(c.primary.statistic, c.primary.direction, c.primary.factor) for c in CLAIMS}
    assert len(found) == len(kinds)
    assert {endpoint.direction for endpoint, _ in found} == set(Direction)


def test_false_verdicts_are_rare(found):
    """At most 5 % of identical arms. With an effect of δ on the other side, of 300 pairs three
    standard errors more: 8.8 %."""
    for endpoint, (none, _, other_side) in found:
        assert simulation.false_rate(endpoint, none) <= 0.05, endpoint
        assert none[Outcome.premise_not_met] == 0
        assert sum(none.values()) == pytest.approx(1)
        assert other_side[Outcome.supported] <= 0.088, endpoint


def test_a_claim_that_is_true_is_found(found):
    """An effect of δ for higher and lower, none for alike and not lower."""
    for endpoint, (none, as_claimed, _) in found:
        true = as_claimed if endpoint.direction in simulation.DIRECTED else none
        assert true[Outcome.supported] > 0.85, endpoint


def test_three_seeds_find_less():
    few = simulation.simulated(np.random.default_rng(0), pairs=50, seeds=3)
    shares = next(each for endpoint, each in few if simulation.name(endpoint) == "higher: final")
    assert shares[1][Outcome.supported] < 0.8


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
    assert "false outcome of identical arms" in printed
    assert "higher: final" in printed
