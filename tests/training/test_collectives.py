"""Ranks exchange the same things in the same order, whatever rows each of them has.

Whether the logits of a pass are made at once or in chunks decides what is exchanged, so it is
decided for all ranks together.
"""

import contextlib
import copy

import pytest
import torch
from conftest import accumulate_gradient, experiment
from pieces import method

import rec_experiments
from rec_experiments.common.batch import Responses, Rollouts
from rec_experiments.common.distributed import ALONE, whole
from rec_experiments.common.problems import VerifierResult
from rec_experiments.policy import logprobs


def rollouts_of(lengths: list[int]) -> Rollouts:
    """One group of responses that differ, of these lengths."""
    rows = range(len(lengths))
    tokens = [[3 + n % 200, *[7] * (length - 1)] for n, length in enumerate(lengths)]
    return Rollouts.verified(
        Responses.of(tokens, [[-1.0] * length for length in lengths]),
        prompts=[[3, 4] for _ in rows],
        groups=[0 for _ in rows],
        results=[VerifierResult(float(n % 2), 0.0) for n in rows],
    )


def tiny_model():
    model = experiment("model.hidden_size=16", "model.heads=2").model.model()
    model.gradient_checkpointing_enable()
    return model


@contextlib.contextmanager
def chunks_above(logits: int):
    before = logprobs.LOGITS_AT_ONCE
    logprobs.LOGITS_AT_ONCE = logits
    try:
        yield
    finally:
        logprobs.LOGITS_AT_ONCE = before


def gradient_on(world, lengths, threshold, name):
    """With a reference and gradient checkpointing; logits above `threshold` tokens in chunks."""
    model = tiny_model()
    reference = world.split(copy.deepcopy(model).requires_grad_(False))
    algorithm = rec_experiments.algorithm("grpo").parts if name == "grpo" else method(name)
    policy = world.split(model)
    with chunks_above(threshold * model.config.vocab_size):
        accumulate_gradient(
            policy, rollouts_of(lengths), algorithm, reference=reference, world=world
        )
    return torch.cat([whole(p.grad).flatten() for p in policy.parameters()])


@pytest.mark.parametrize("name", ["grpo", "m2po"])
@pytest.mark.parametrize(
    "threshold", [18, 1, 1000], ids=["between the ranks", "below both", "above both"]
)
def test_ranks_on_both_sides_of_the_threshold(ranks, threshold, name):
    """Rank 0 has 2 x 20 response tokens, rank 1 has 12."""
    lengths = [20, 12, 5, 5][: 3 + (name == "m2po")]
    alone = gradient_on(ALONE, lengths, 1000, name)
    assert alone.abs().max() > 1e-5
    for together in ranks(gradient_on, lengths, threshold, name):
        torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-6)
