"""Compiled layers compute what the others do, up to rounding.

1. Loss and gradient are those of layers that are not compiled, padded, packed and with shared
   prompts, with checkpointing of activations and without; all layers and lengths are one graph.
2. A run on two ranks is that of one without; its states have the names of plain weights.
3. Where nothing can be compiled is one line.

Each process compiles for ten seconds of a processor.
"""

import copy

import pytest
import torch
from conftest import experiment, resolve, timeless
from test_packing import CONFIGS, model, sequences
from test_shared_prompts import LARGER, saved
from torch._dynamo.utils import counters
from transformers import Qwen2Config

from rec_experiments.distributed import ALONE
from rec_experiments.errors import UserError
from rec_experiments.policy.compiled import compile_layers
from rec_experiments.policy.logprobs import ForwardPass
from rec_experiments.prepare import prepare
from rec_experiments.records.run_folder import RunFolder
from rec_experiments.training.loop import train

LENGTHS = [[(3, 4), (1, 7), (9, 2)], [(5, 5), (2, 3)], [(8, 6), (8, 6), (4, 1), (1, 2)]]
LAYOUTS = [{}, {"packed": True}, {"shared": True}]


def loss_and_gradient(policy, rows, layout):
    policy.zero_grad()
    forward = ForwardPass(pad_id=0, temperature=1.0, compute_dtype=torch.float32, **layout)
    scored = forward(policy, rows, chunked=True)
    loss = sum(
        (torch.linspace(-1, 2, len(row.response)) * scored.logp_BT[b, : len(row.response)]).sum()
        for b, row in enumerate(rows)
    )
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in policy.parameters()])


@pytest.mark.parametrize("checkpointing", [False, True])
def test_loss_and_gradient_are_those_of_layers_that_are_not(checkpointing):
    """float64, but for norms, which the model computes in float32."""
    plain = model(CONFIGS["qwen2"]).train()
    if checkpointing:
        plain.gradient_checkpointing_enable()
    policy = copy.deepcopy(plain)
    compile_layers(policy)
    assert policy.state_dict().keys() == plain.state_dict().keys()
    before = counters["stats"]["unique_graphs"]
    for layout in LAYOUTS:
        for lengths in LENGTHS:
            rows = sequences(lengths)
            one, other = (loss_and_gradient(each, rows, layout) for each in (plain, policy))
            torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-4)
            assert one[1].abs().max() > 1
    assert counters["stats"]["unique_graphs"] - before <= len(LAYOUTS)


RUN = (
    "model=pretrained", "dataset=arithmetic", "steps=2", "batch_size=4", "group_size=4",
    "eval_problems=4", "kl_every=1", "dataset.train_problems=16", "dataset.eval_problems=8",
    "reward=noise", "reward.share=0.4", "model.gradient_checkpointing=true", "sampler.max_rows=4",
)  # fmt: skip


def rows_and_names(world, path, overrides):
    """Of a whole run, on one rank or many."""
    overrides = (*RUN, f"model.path={path.parent}/model", f"ranks={world.size}", *overrides)
    exp, config, folder = experiment(*overrides), resolve(*overrides), RunFolder(path, world)
    folder.check(config)
    folder.start(config, {})
    train(exp, prepare(exp, world=world), folder)
    return [*map(timeless, folder.metrics())], list(folder.load_checkpoint()[0]["model"])


def test_two_ranks(ranks, tmp_path):
    saved(Qwen2Config(**LARGER), tmp_path / "model")
    plain, names = rows_and_names(ALONE, tmp_path / "plain", ())
    assert plain[1]["train/grad_norm"] > 1e-3
    compiled = ranks(rows_and_names, tmp_path / "run", ("model.compile_layers=true",))
    for rows, their_names in compiled:
        assert their_names == names
        for row, other in zip(plain, rows, strict=True):
            assert other == pytest.approx(row, rel=1e-3, abs=1e-5)


def test_where_nothing_can_be_compiled_is_one_line():
    torch._dynamo.reset()
    without = {"cpp.cxx": ("/no/such/compiler",), "force_disable_caches": True}
    with (
        torch._inductor.config.patch(without),
        pytest.raises(UserError, match=r"model\.compile_layers=true: nothing can be compiled here"),
    ):
        compile_layers(model(CONFIGS["qwen2"]))
