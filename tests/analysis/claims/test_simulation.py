"""What these tests lock: identical arms get a false verdict rarely, and an effect of δ is found."""

import numpy as np
import pytest
import simulation

from rec_experiments.analysis.claims.decision import Outcome


@pytest.fixture(scope="module")
def found():
    rng = np.random.default_rng(0)
    return simulation.simulated(rng, pairs=100, seeds=10)


def test_false_verdicts_are_rare(found):
    """At most 5 % of identical arms. With an effect of δ on the other side, of 100 pairs three
    standard errors more: 11.6 %."""
    for endpoint, (none, _, other_side) in found:
        assert simulation.false_rate(endpoint, none) <= 0.05, endpoint
        assert none[Outcome.premise_not_met] == 0
        assert sum(none.values()) == pytest.approx(1)
        assert other_side[Outcome.supported] <= 0.116, endpoint


def test_a_claim_that_is_true_is_found(found):
    """An effect of δ for higher and lower, none for alike and not lower."""
    for endpoint, (none, as_claimed, _) in found:
        true = as_claimed if endpoint.direction in simulation.DIRECTED else none
        assert true[Outcome.supported] > 0.85, endpoint
