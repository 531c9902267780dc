"""Operations and time of a gradient step, in a plan.

1. Operations are those that torch counts when the code that trains runs, padding included.
2. A gradient step has its part of a batch, and of the draw that it comes from.
3. Every forward pass beside that of the gradient counts.
4. Lengths are within those that the data set allows.
"""

import pytest
import torch
from conftest import experiment
from test_memory import SMALL
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from rec_experiments.common.batch import Sequences
from rec_experiments.plan import memory, usual
from rec_experiments.plan.cost import extra_passes, step_cost
from rec_experiments.plan.sampler import SamplerMemory
from rec_experiments.policy.logprobs import ForwardPass

VALUES = usual()
GPU = {"operations": 1e15, "bandwidth": 1e12, "memory": 80e9}
LOCAL = ("model=pretrained", "model.path=x", "kl_every=0", "micro_batch_size=null")
ROWS = (
    "batch_size=2", "group_size=4", "dataset.max_prompt_tokens=64",
    "dataset.max_response_tokens=64",
)  # fmt: skip


def cost(*overrides, **values):
    exp = experiment(*LOCAL, *overrides)
    weights = memory.model_bytes(exp, SMALL)[0] / 4
    sampler = SamplerMemory(weights * 4, 1e12, 0.0, None)
    return step_cost(exp, SMALL, sampler, GPU, VALUES | values, weights, 0.0)


def test_operations_are_those_of_the_code_that_trains():
    """Of rows of like lengths, in one pass: nothing is padding. What is looked up in the embeddings
    is no product, and the last token of a row is not read."""
    exp = experiment(*LOCAL, *ROWS)
    found = cost(*ROWS, prompt_tokens=48, response_tokens=60, padding=0).trained
    numbers = range(exp.batch_size * exp.group_size)
    rows = Sequences.of([[n // 4] * 48 for n in numbers], [[n] * 60 for n in numbers])
    forward = ForwardPass(
        temperature=1.0, compute_dtype=torch.float32, fast_path=False
    )  # fmt: skip
    batch = forward.layout([], rows)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = AutoModelForCausalLM.from_config(SMALL, attn_implementation="eager")
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            forward.score(model, batch, chunked=True)
    assert found == pytest.approx(3 * counter.get_total_flops(), rel=0.03)


def test_frozen_weights_have_no_gradient():
    assert cost("adapter=lora").trained == pytest.approx(cost().trained * 2 / 3)


@pytest.mark.parametrize(("stragglers", "length"), [(1, 20), (2, 40), (9, 64)])
def test_a_draw_takes_the_tokens_of_all_and_of_its_longest_response(stragglers, length):
    """Each with the overhead of an engine. No response is longer than allowed."""
    given = {"response_tokens": 20, "stragglers": stragglers}
    slow, quick = (cost(*ROWS, **given, engine_us_per_token=n).seconds["draw"] for n in (7, 0))
    assert slow - quick == pytest.approx(7e-6 * (8 * 20 + length - 20))


def test_padding_is_computed_where_rows_are_padded():
    plain, padded = (cost(*ROWS, padding=share).trained for share in (0, 0.5))
    assert 1.7 < padded / plain < 2  # the head computes none
    for kind in ("packed", "shared_prompts"):
        choice = f"model.{kind}=true"
        assert cost(*ROWS, choice, padding=0.5) == cost(*ROWS, choice, padding=0)


def test_a_gradient_step_has_its_part_of_a_batch():
    whole, part = cost("batch_size=16"), cost("batch_size=16", "updates=four_parts")
    assert (part.tokens, part.trained) == (whole.tokens / 4, whole.trained / 4)
    for name in ("train", "draw", "push", "step"):
        assert part.seconds[name] == pytest.approx(whole.seconds[name] / 4), name
    twice = cost("batch_size=16", "updates=twice")
    assert twice.trained == whole.trained
    assert twice.seconds["draw"] == whole.seconds["draw"] / 2
    replay = cost("batch_size=16", "buffer=replay")
    assert replay.trained == whole.trained
    assert replay.seconds["draw"] < whole.seconds["draw"]


@pytest.mark.parametrize(
    ("overrides", "passes"),
    [
        (("algo=reinforce", "kl_every=0"), 0),
        (("algo=reinforce", "kl_every=4"), 0.25),
        (("algo=grpo_kl", "kl_every=4"), 1),  # the loss reads the reference
        (("algo=ppo_ewma", "kl_every=0"), 1),  # and this one the moving average
    ],
)
def test_extra_passes(overrides, passes):
    assert extra_passes(experiment(*overrides)) == passes


def test_a_correction_takes_time_where_batches_are_drawn():
    plain, corrected = cost("algo=reinforce"), cost("algo=reinforce", "correction=truncated")
    assert corrected.seconds["train"] == plain.seconds["train"]
    more = corrected.seconds["draw"] - plain.seconds["draw"]
    assert more == pytest.approx(plain.seconds["train"] / 3)
