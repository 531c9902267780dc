"""Memory of training in a plan.

1. What is planned is what a run takes.
2. Deeper models follow from the shallow ones that are measured.
3. Ranks share weights, gradients and optimizer state.
4. Every copy of the weights is counted where it is held.
"""

import pytest
import torch
from benchmarks.plan_reality import write_model
from conftest import experiment, run
from transformers import LlamaConfig

from rec_experiments.plan import memory
from rec_experiments.plan.memory import Meter, largest_pass, with_layers
from rec_experiments.policy.batching import Limits, distinct

SMALL = LlamaConfig(
    hidden_size=64, intermediate_size=96, num_hidden_layers=9, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=512, max_position_embeddings=8192,
)  # fmt: skip
GUARDED = ("model=pretrained", "model.path=x", "micro_batch_tokens=4096", "micro_batch_size=null")
PLAIN = (*GUARDED, "micro_batch_tokens=64", "kl_every=0")
FEW = with_layers(SMALL, 4)
WEIGHTS = 4 * (2 * 512 * 64 + 4 * (64 * 64 * 3 + 64 * 96 * 3 + 2 * 64) + 64)  # bytes


def counted(*overrides):
    return memory.training_memory(experiment(*PLAIN, *overrides), FEW, 100)


@pytest.fixture
def copies_alone(monkeypatch):
    """A micro-batch adds nothing, and need not be measured."""
    monkeypatch.setattr(memory, "pass_memory", lambda *_: 0.0)


def near(copies, rel=0.02):
    return pytest.approx(copies * WEIGHTS, rel=rel)


@pytest.mark.parametrize("extra", [(), ("kl_every=1", "updates=twice")])
def test_a_run_takes_what_is_planned(extra, tmp_path):
    """On a CPU, which is device and host in one. One more copy of the weights would show."""
    config = LlamaConfig(
        hidden_size=384, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4,
        vocab_size=258, max_position_embeddings=8192,
    )  # fmt: skip
    overrides = (
        "model=pretrained", f"model.path={tmp_path}/model", "model.gradient_checkpointing=true",
        "dataset=arithmetic", "steps=2", "batch_size=4", "group_size=2", "eval_problems=1",
        "dataset.train_problems=16", "dataset.eval_problems=8", "micro_batch_tokens=64",
        "micro_batch_size=null", "dataset.max_response_tokens=8", "kl_every=0", "reward=noise",
        "reward.share=0.4", "device=cpu", *extra,
    )  # fmt: skip
    exp = experiment(*overrides)
    write_model(tmp_path / "model", exp, config)
    with Meter() as meter:
        run(tmp_path / "run", *overrides)
    found = memory.training_memory(exp, config, 20)
    weights, _ = memory.model_bytes(exp, config)
    planned = max(found[phase].device + found[phase].host for phase in ("train", "step"))
    planned += weights  # the sampler's
    assert meter.peak == pytest.approx(planned, abs=weights / 4)


def test_deeper_models_follow(monkeypatch):
    exp = experiment(*GUARDED, "micro_batch_tokens=512")
    followed = memory.training_memory(exp, SMALL, 100)
    monkeypatch.setattr(memory, "LAYERS", (8, 9))
    assert memory.training_memory(exp, SMALL, 100)["train"].device == pytest.approx(
        followed["train"].device, rel=1e-3
    )


def test_ranks_share_weights_and_moments(copies_alone):
    alone, shared = counted(), counted("ranks=4")
    assert alone["step"].device > 3.9 * WEIGHTS
    # Weights, two moments, and the weights that sample: a fourth of each.
    assert shared["sample"].device == near(1)


def test_adapters_alone_have_gradients_and_moments(copies_alone):
    found = counted("adapter=lora", "model.lora.rank=2", "kl_every=1")
    widths = [(64, 64), (64, 32), (64, 32), (64, 64), *[(64, 96)] * 3]
    adapters = 4 * 4 * 2 * sum(map(sum, widths))  # bytes, of four layers
    assert found["start"].device == WEIGHTS + adapters
    assert found["sample"].device == WEIGHTS + 3 * adapters
    assert found["train"].device == WEIGHTS + 4 * adapters
    assert found["sample"].host == adapters  # those that sample; the reference is not copied
    swapped = counted("adapter=lora", "model.lora.rank=2", "kl_every=1", "reference=swapped")
    assert swapped["sample"].host == WEIGHTS + adapters


def test_a_reference_waits_on_the_host(copies_alone):
    found, without = counted("kl_every=1"), counted()
    assert found["sample"].device == near(3)  # weights and two moments
    assert found["sample"].host == near(2)  # the reference, and the weights that sample
    assert found["train"].device - without["train"].device == near(1)
    assert without["sample"].host == near(1)


@pytest.mark.parametrize(
    ("extra", "copies"),
    [
        ((), 4),  # weights, two moments, and the weights that are sampled from
        (("ranks=4", "pipeline=overlap"), 1),  # which ranks share
        (("algo=ppo_ewma",), 5),  # and a policy that moves
    ],
)
def test_an_asynchronous_checkpoint_is_a_copy_on_the_host(extra, copies, copies_alone):
    waits, goes_on = (counted(*extra, f"async_checkpoints={word}") for word in ("false", "true"))
    for phase in ("sample", "train", "step"):
        assert goes_on[phase].host - waits[phase].host == near(copies), phase
        assert goes_on[phase].device == waits[phase].device
    assert goes_on["resume"] == waits["resume"]


def test_a_correction_has_a_copy_of_the_model(copies_alone):
    plain, corrected = counted(), counted("correction=truncated")
    for phase in plain:
        more = corrected[phase].device - plain[phase].device
        assert more == near(1), phase
    beside = counted("correction=truncated", "pipeline=overlap")
    assert beside["train"].device == pytest.approx(plain["train"].device, rel=0.02)


@pytest.mark.parametrize(
    ("extra", "rows"),
    [("updates.mini_batches=2", 12), ("ranks=3", 7), ("micro_batch_size=6", 6)],
)
def test_a_micro_batch_has_at_most_the_rows_of_a_mini_batch(extra, rows):
    found = experiment(*GUARDED, "batch_size=5", "group_size=4", extra, "micro_batch_tokens=null")
    assert len(largest_pass(found, 100)) == rows


@pytest.mark.parametrize(
    ("limit", "prompt"),
    [(512, 16), (100, 100), ("null", 100)],  # one row exceeds the second
)
def test_without_a_token_limit_prompts_are_the_longest(limit, prompt):
    lengths = ("dataset.max_prompt_tokens=100", "dataset.max_response_tokens=64", "group_size=8")
    exp = experiment(*GUARDED, f"micro_batch_tokens={limit}", "micro_batch_size=4", *lengths)
    found = largest_pass(exp, 16)
    assert (found.prompt_BP.shape[1], found.token_BT.shape[1]) == (prompt, 64)


def test_a_shared_prompt_is_counted_once():
    several = (*GUARDED, "batch_size=6", "group_size=4", "dataset.max_response_tokens=50")
    found = {}
    for shared in (False, True):
        exp = experiment(*several, "micro_batch_tokens=650", f"model.shared_prompts={shared}")
        part = distinct(largest_pass(exp, 100))
        found[shared] = len(part), Limits(None, 650, shared=shared).computed(part)
    assert found == {False: (9, 594), True: (12, 648)}


def test_the_meter_counts_what_is_alive():
    with Meter() as meter:
        one = torch.zeros(1000)
        view = one[10:].view(-1)
        two = one + 1
        del two
        assert (meter.peak, meter.held()) == (8000, 4000)
        one.untyped_storage().resize_(400)
        del one
        assert meter.held() == 400
        del view
    assert meter.held() == 0
