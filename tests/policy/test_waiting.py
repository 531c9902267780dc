"""Weights that wait on the host.

1. A copy that is kept is independent of the model; tied weights stay one.
2. A frozen copy takes as little memory as changes no bit; it comes to the device and goes back.
3. A step is the same whether the reference waits or not.
"""

import pytest
import torch
from language_models import SHAPE
from transformers import Qwen2Config, Qwen2ForCausalLM

from rec_experiments.common.batch import Sequences
from rec_experiments.common.distributed import copied_to_host, memory_of
from rec_experiments.policy.logprobs import ForwardPass, frozen_copy
from rec_experiments.training.gradient import on_device


def model(tied=True):
    torch.manual_seed(0)
    config = Qwen2Config(**SHAPE, vocab_size=50, tie_word_embeddings=tied)
    return Qwen2ForCausalLM(config).eval().requires_grad_(False)


@pytest.mark.parametrize("tied", [True, False])
def test_copy(tied):
    policy = model(tied)
    held = copied_to_host(policy.state_dict())
    before = {name: weight.clone() for name, weight in held.items()}
    for parameter in policy.parameters():
        parameter.mul_(2)
    assert all(torch.equal(held[name], before[name]) for name in held)
    one, other = held["lm_head.weight"], held["model.embed_tokens.weight"]
    assert (one.data_ptr() == other.data_ptr()) is tied


@pytest.mark.parametrize("tied", [True, False])
def test_on_device(tied):
    """The device is one without values."""
    reference = frozen_copy(model(tied), torch.bfloat16)
    waiting = reference.state_dict()
    with on_device(reference, torch.device("meta")):
        there = reference.state_dict()
        assert {weight.device.type for weight in there.values()} == {"meta"}
        assert len({memory_of(weight) for weight in there.values()}) == len(there) - tied
        assert not any(parameter.requires_grad for parameter in reference.parameters())
    back = reference.state_dict()
    assert all(back[name].data_ptr() == weight.data_ptr() for name, weight in waiting.items())


def test_a_model_of_a_smaller_dtype_keeps_it():
    lower = frozen_copy(model().bfloat16(), torch.float32)
    assert {weight.dtype for weight in lower.state_dict().values()} == {torch.bfloat16}


@pytest.mark.parametrize("tied", [True, False])
def test_dtype_of_products(tied):
    reference = model(tied)
    lower = frozen_copy(reference, torch.bfloat16)
    weights = lower.state_dict()
    low = {name for name, weight in weights.items() if weight.dtype == torch.bfloat16}
    assert low == {name for name in weights if "_proj.weight" in name}
    forward = ForwardPass(temperature=1.0, compute_dtype=torch.bfloat16)
    rows = Sequences.of([[1, 2, 3], [6]], [[4, 5], [7, 8, 9]])
    one, other = forward(reference, rows).logp_BT, forward(lower, rows).logp_BT
    assert torch.equal(one, other)
    assert not torch.equal(one, forward(reference, rows.rows(torch.tensor([0]))).logp_BT[:, :1])
