"""Compiled layers compute what the others do, up to rounding.

1. Loss and gradient are those of layers that are not compiled, padded, packed and with shared
   prompts, with checkpointing of activations and without; all layers and lengths are one graph.
2. A run on two ranks is that of one without; its states have the names of plain weights.
3. Where nothing can be compiled is one line.

Compiling takes ten seconds of a processor here, and the most of a minute in each of two ranks.
"""

import copy

import pytest
import torch
from conftest import sequences_of
from test_packing import CONFIGS, model, sequences
from test_shared_prompts import LARGER, assert_close, rows_and_names, saved
from torch._dynamo.utils import counters
from transformers import Qwen2Config

from rec_experiments.common.distributed import ALONE
from rec_experiments.common.errors import UserError
from rec_experiments.policy.compiled import compile_layers
from rec_experiments.policy.logprobs import ForwardPass

pytestmark = pytest.mark.long
LENGTHS = [[(3, 4), (1, 7), (9, 2)], [(5, 5), (2, 3)], [(8, 6), (8, 6), (4, 1), (1, 2)]]
CHECKPOINTING = ("model.gradient_checkpointing=true",)
LAYOUTS = [{}, {"packed": True}, {"shared": True}]


def loss_and_gradient(policy, rows, layout):
    policy.zero_grad()
    forward = ForwardPass(temperature=1.0, compute_dtype=torch.float32, **layout)
    scored = forward(policy, sequences_of(rows), chunked=True)
    loss = sum(
        (torch.linspace(-1, 2, len(row.response)) * scored.logp_BT[b, : len(row.response)]).sum()
        for b, row in enumerate(rows)
    )
    loss.backward()
    return loss.detach(), torch.cat([p.grad.flatten() for p in policy.parameters()])


@pytest.mark.parametrize("checkpointing", [False, True])
def test_loss_and_gradient(checkpointing):
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


def test_two_ranks(ranks, tmp_path):
    saved(Qwen2Config(**LARGER), tmp_path / "model")
    plain, names = rows_and_names(ALONE, tmp_path / "plain", CHECKPOINTING)
    assert plain[1]["train/grad_norm"] > 1e-3
    overrides = (*CHECKPOINTING, "model.compile_layers=true")
    compiled = ranks(rows_and_names, tmp_path / "run", overrides)
    for rows, their_names in compiled:
        assert their_names == names
        assert_close(rows, plain)


def test_no_compiler():
    torch._dynamo.reset()
    without = {"cpp.cxx": ("/no/such/compiler",), "force_disable_caches": True}
    with (
        torch._inductor.config.patch(without),
        pytest.raises(UserError, match=r"model\.compile_layers=true: cannot compile here"),
    ):
        compile_layers(model(CONFIGS["qwen2"]))
