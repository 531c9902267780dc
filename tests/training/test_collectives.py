"""Ranks exchange the same things in the same order, whatever rows each of them has.

Whether the logits of a pass are made at once or in chunks decides what is exchanged, so it is
decided for all ranks together.
"""

import contextlib
import copy

import pytest
import torch
import torch.distributed as dist
from conftest import accumulate_gradient, experiment
from pieces import method
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

import rec_experiments
from rec_experiments.common import distributed
from rec_experiments.common.batch import Responses, Rollouts
from rec_experiments.common.distributed import ALONE, World, whole
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
            policy, rollouts_of(lengths), algorithm, pad_id=0, reference=reference, world=world
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


class Collectives(TorchDispatchMode):
    """What is exchanged, in order: operation and shapes."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function.namespace in ("c10d", "_c10d_functional"):
            tensors = [
                each
                for argument in arguments
                for each in (argument if isinstance(argument, list) else [argument])
                if isinstance(each, torch.Tensor)
            ]
            self.seen.append((str(function), [tuple(tensor.shape) for tensor in tensors]))
        return function(*arguments, **(options or {}))


def collectives_of(rank: int, size: int, lengths: list[int], threshold: int):
    """Those of one rank of a world in which nobody answers."""
    dist.init_process_group("fake", rank=rank, world_size=size, store=FakeStore())
    distributed._mesh.cache_clear()
    try:
        with Collectives() as collectives:
            gradient_on_passes(World(rank, size), lengths, threshold)
    finally:
        dist.destroy_process_group()
        distributed._mesh.cache_clear()
    return collectives.seen


def gradient_on_passes(world, lengths, threshold):
    model = tiny_model()
    reference = world.split(copy.deepcopy(model).requires_grad_(False))
    policy = world.split(model)
    with chunks_above(threshold * model.config.vocab_size):
        accumulate_gradient(
            policy, rollouts_of(lengths), rec_experiments.algorithm("grpo").parts, pad_id=0,
            micro_batch_size=2, reference=reference, world=world,
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_every_rank_has_the_same_list(seed):
    g = torch.Generator().manual_seed(seed)
    size = 2 + seed % 2
    rows = int(torch.randint(2, 10, (), generator=g))
    lengths = torch.randint(1, 25, (rows,), generator=g).tolist()
    threshold = int(torch.randint(1, 30, (), generator=g))
    lists = [collectives_of(rank, size, lengths, threshold) for rank in range(size)]
    assert len(lists[0]) > 10
    for other in lists[1:]:
        assert other == lists[0]
