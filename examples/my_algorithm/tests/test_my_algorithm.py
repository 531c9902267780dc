"""MyAlgorithm against its closed form, composed as in a run."""

import pytest
import torch

import rec_experiments
from rec_experiments.common.errors import UserError


def gradient(algorithm, ratios):
    """Of the loss, for two responses of one token to the same prompt; the first is correct."""
    logp = torch.log(torch.tensor(ratios))[:, None].requires_grad_()
    out = algorithm(
        logp=logp,
        behavior_logp=torch.zeros(2, 1),
        rewards=torch.tensor([1.0, 0.0]),
        groups=torch.tensor([0, 0]),
        mask=torch.ones(2, 1),
    )
    out.loss.backward()
    return logp.grad[:, 0].tolist()


def test_gradient_is_minus_advantage_times_weight_over_tokens():
    algorithm = rec_experiments.algorithm("my_algorithm", "weight.cap=1.5")
    advantages, weights = (0.5, -0.5), (1.5, 0.25)  # ρ = 2 is capped, ρ = 0.25 is not
    expected = [-a * w / 2 for a, w in zip(advantages, weights, strict=True)]
    assert gradient(algorithm, (2.0, 0.25)) == pytest.approx(expected)


def test_on_fresh_data_it_is_reinforce():
    ours, plain = map(rec_experiments.algorithm, ("my_algorithm", "reinforce"))
    assert gradient(ours, (1.0, 1.0)) == gradient(plain, (1.0, 1.0))


def test_cap_out_of_range_is_refused():
    with pytest.raises(UserError, match=r"weight\.cap=0\.0: must be greater than 0"):
        rec_experiments.algorithm("my_algorithm", "weight.cap=0.0")
