"""Low-rank adapters.

1. Their gradient is that of all weights by the chain rule, to float64's rounding, and what draws
   gets the weights that peft itself merges.
2. A run trains the adapters alone and starts at a KL of 0 from weights that it shares; resumed,
   overlapped or on two ranks it is the same run.
3. The exported folder, merged or the adapter apart, scores as the run said.
4. What cannot be adapted is one line.
"""

import copy
import shutil
from unittest import mock

import pytest
import torch
from conftest import (
    SMALL,
    accumulate_gradient,
    assert_same_result,
    experiment,
    run,
    with_exact_norms,
)
from test_distributed import assert_same, run_on
from transformers import AutoModelForCausalLM

import rec_experiments
from rec_experiments.common.distributed import ALONE
from rec_experiments.common.errors import UserError
from rec_experiments.policy import lora
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.models import Lora
from rec_experiments.runs import evaluation, saved
from rec_experiments.runs.prepare import make_worker, prepare
from rec_experiments.runs.run import run as train

TARGETS = ["q_proj", "v_proj", "o_proj", "down_proj"]
PLAN = Lora(rank=3, alpha=7.0, targets=TARGETS, seed=5)
WITHOUT_MODEL = [each for each in SMALL if not each.startswith("model")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of transformers that earns some rewards."""
    path = tmp_path_factory.mktemp("model") / "tiny"
    start = prepare(experiment(*SMALL, "model.warm_start.steps=40"))
    start.model.save_pretrained(path)
    start.evaluator.chat.tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def overrides(folder):
    return (
        *WITHOUT_MODEL, "model=pretrained", "adapter=lora", f"model.path={folder}",
        "model.lora.rank=4", "model.lora.alpha=16", "optimizer.learning_rate=0.01", "algo=asymre",
    )  # fmt: skip


@pytest.fixture(scope="module")
def done(overrides, tmp_path_factory):
    return run(tmp_path_factory.mktemp("run") / "run", *overrides, "eval_every=1")


def moved(model):
    """With adapters that are not at their start."""
    torch.manual_seed(1)
    for weight in lora.trained(model).values():
        weight.data += 0.05 * torch.randn_like(weight)
    return model


@pytest.mark.usefixtures("padded_rows")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_gradient_is_that_of_all_weights_by_the_chain_rule(mini_batch, checkpointing):
    model, rollouts = mini_batch
    plain = with_exact_norms(copy.deepcopy(model))
    if checkpointing:
        plain.gradient_checkpointing_enable()
    policy = moved(lora.adapted(plain, PLAN))
    merged = lora.WholeWeights(lora.state_of(policy), lora.Base.of(policy))
    dense = copy.deepcopy(plain).requires_grad_(True)
    dense.load_state_dict(merged)
    grpo = rec_experiments.algorithm("grpo").parts
    for each in (policy, dense):
        accumulate_gradient(each, rollouts, grpo, micro_batch_size=5)
    found, layers = lora.trained(policy), dict(dense.named_parameters())
    assert {name.split(".")[-4] for name in found} == set(TARGETS)
    for name, up in found.items():
        if ".lora_B." not in name:
            continue
        down = found[name.replace(".lora_B.", ".lora_A.")]
        by_weight = layers[name.replace(".lora_B.default", "")].grad * PLAN.alpha / PLAN.rank
        assert by_weight.abs().max() > 1e-5
        torch.testing.assert_close(up.grad, by_weight @ down.mT, rtol=1e-10, atol=1e-14)
        torch.testing.assert_close(down.grad, up.mT @ by_weight, rtol=1e-10, atol=1e-14)
    assert all(weight.grad is None for weight in plain.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_weights_are_those_of_peft(folder, dtype):
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    policy = moved(lora.adapted(plain, PLAN))
    assert {weight.dtype for weight in lora.trained(policy).values()} == {torch.float32}
    base = lora.Base.of(policy)
    merged = lora.WholeWeights(lora.state_of(policy), base)
    assert [*merged] == [*plain.state_dict()]
    for name, weight in plain.state_dict().items():  # no copy of what is frozen
        assert base.weights[name].data_ptr() == weight.data_ptr()
    expected = copy.deepcopy(policy)
    for module in expected.modules():
        if hasattr(module, "merge"):
            module.merge()
    for name, weight in expected.state_dict().items():
        if ".lora_" not in name:
            ours = merged[name.replace(".base_layer.", ".")]
            adapted = name.endswith(".base_layer.weight")
            assert ours.dtype == (torch.float32 if adapted else dtype)
            rounding = torch.finfo(dtype).eps
            torch.testing.assert_close(
                ours.float(), weight.float(), rtol=2 * rounding, atol=rounding / 10
            )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_draws_has_the_change_of_a_small_step(overrides, folder, dtype):
    """In bfloat16 alone, its cosine with the trained change would be about .3."""
    chosen = experiment(*overrides, f"model.dtype={dtype}", "correction=truncated")
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    policy = lora.adapted(plain, PLAN)
    torch.manual_seed(1)
    for name, weight in lora.trained(policy).items():
        if ".lora_B." in name:
            weight.data.normal_(std=1e-5)
    worker = make_worker(chosen, plain, ChatTemplate(chosen.model.tokenizer(), plain))
    merged = lora.WholeWeights(lora.state_of(policy), lora.Base.of(policy))
    state = policy.state_dict()
    name = "model.layers.0.self_attn.q_proj"
    up, down = (state[f"{name}.lora_{x}.default.weight"] for x in "BA")
    change = (up.double() @ down.double()).flatten()
    for drawing in (worker.sampler, worker.recomputer):
        drawing.load(merged)
        weight = drawing.model.state_dict()[f"{name}.weight"].double()
        found = (weight - plain.state_dict()[f"{name}.weight"].double()).flatten()
        assert torch.nn.functional.cosine_similarity(found, change, 0) > 0.99


def test_a_run_trains_the_adapters_alone(done, folder):
    rows = done.metrics()
    assert rows[1]["train/kl"] == 0
    assert rows[3]["train/kl"] > 1e-6
    assert rows[1]["train/mismatch"] < 1e-4  # what draws has the merged weights
    assert rows[1]["train/weight_step"] > 1e-3
    states = done.load_checkpoint()[0]["weights"]
    for part in ("model", "behavior"):
        assert all(".lora_" in name for name in states[part])
    assert any(name.endswith("lora_B.default.weight") and weight.abs().max() > 1e-3
               for name, weight in states["model"].items())  # fmt: skip
    model, _ = saved.model_of(done.path, saved.source_of(done.path), None)
    start = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    changed = {n for n, weight in model.state_dict().items() if not torch.equal(weight, start[n])}
    assert changed == {name for name in start if "_proj.weight" in name}


def test_a_reference_that_never_moves_shares_the_weights(overrides):
    trainer = prepare(experiment(*overrides))
    reference = dict(trainer.policies.models["reference"].named_parameters())
    for name, weight in trainer.model.named_parameters():
        if not weight.requires_grad:
            assert weight is reference[name.replace(".base_layer.", ".")]
    swapped = prepare(experiment(*overrides, "reference=swapped"))
    assert not any(
        weight is other
        for weight in swapped.model.parameters()
        for other in swapped.policies.models["reference"].parameters()
    )


SEVERAL = ("updates.epochs=2", "updates.mini_batches=2", "sync.interval=2", "sync.offset=1")


@pytest.mark.parametrize(
    "extra",
    [
        ("sync.interval=2", "sync.offset=1"),
        (*SEVERAL, "ratio=proximal", "proximal=moving_average", "clip=one_side",
         "weight=importance", "reference=swapped", "reference.swap_every=1"),
    ],
)  # fmt: skip
def test_a_resumed_run_is_the_uninterrupted_one(overrides, extra, tmp_path):
    entire = run(tmp_path / "entire", *overrides, *extra)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", *overrides, *extra, until=2)
    assert_same_result(run(tmp_path / "cut", *overrides, *extra), entire)


@pytest.mark.long
def test_an_overlapped_run_is_the_sequential_one(overrides, tmp_path):
    extra = ("sync.interval=2", "sync.offset=1")
    runs = [
        run(tmp_path / name, *overrides, *extra, f"pipeline={name}")
        for name in ("sequential", "overlap")
    ]
    assert_same_result(*runs)


def test_a_model_without_weights_ties_what_the_model_ties(overrides):
    """Ranks that get their weights from the first one would gather others than it otherwise."""
    source = experiment(*overrides).model
    names = [dict(each.named_parameters()).keys() for each in (source.model(), source.skeleton())]
    assert "lm_head.weight" not in names[0]
    assert names[0] == names[1]


@pytest.mark.long
def test_two_ranks(ranks, overrides, tmp_path):
    """As one, to rounding; a resumed run bit for bit. Every rank has its rows of the adapters."""
    own = (*overrides, "sampler.max_rows=4", "eval_problems=7", "sync.interval=2", "sync.offset=1")
    alone, *_ = run_on(ALONE, tmp_path / "one", own, None, ())
    together = ranks(run_on, tmp_path / "two", own, None, ())
    for row, two_row in zip(alone, together[0][0], strict=True):
        assert two_row == pytest.approx(row, rel=1e-3, abs=1e-5)
    ranks(run_on, tmp_path / "cut", own, 2, ())
    resumed = ranks(run_on, tmp_path / "cut", own, None, ())
    assert "resumed after gradient step 1" in resumed[0][3]
    assert_same(resumed, together)
    parts = [state["weights"]["model"] for _, _, state, _ in together]
    name = next(name for name in parts[0] if ".lora_A." in name)
    assert [len(part[name]) for part in parts] == [2, 2]


def test_other_weights_beside_the_adapters_are_refused(overrides, folder, tmp_path):
    """A checkpoint does not hold them: their digest is recorded at each start of a run."""
    place, path = tmp_path / "model", tmp_path / "run"
    shutil.copytree(folder, place)
    own = [each for each in overrides if not each.startswith("model.path=")]
    own = experiment(*own, f"model.path={place}", f"run_dir={path}", "steps=2")
    train(own)
    model = AutoModelForCausalLM.from_pretrained(place)
    with torch.no_grad():
        model.model.norm.weight[0] += 1e-3
    model.save_pretrained(place)
    shutil.rmtree(path / "checkpoints" / "step_00000002")
    (path / "status.json").write_text('{"state": "running"}')
    with pytest.raises(UserError, match="weights beside its adapters have changed since it start"):
        train(own)
    with pytest.raises(UserError, match="does not hold the weights that the adapters of"):
        saved.export(path, tmp_path / "out", None)
    assert not (tmp_path / "out").exists()
    shutil.copytree(folder, place, dirs_exist_ok=True)
    train(own)


def test_the_exported_folder_scores_as_the_run_said(done, tmp_path):
    said = {k: v for k, v in done.metrics()[3].items() if k.startswith("eval/")}
    assert evaluation.evaluate(str(done.path), 3, []).metrics == said
    saved.export(done.path, tmp_path / "merged", 3)
    data = [each for each in SMALL if each.startswith(("dataset", "eval_"))]
    assert evaluation.evaluate(str(tmp_path / "merged"), 3, data).metrics == said
    saved.export(done.path, tmp_path / "adapter", 3, adapter=True)
    files = {file.name for file in (tmp_path / "adapter").iterdir()}
    assert "adapter_model.safetensors" in files
    assert "model.safetensors" not in files
    merged, beside = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("merged", "adapter")
    )
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        torch.testing.assert_close(beside(tokens).logits, merged(tokens).logits)


def test_what_cannot_be_adapted_is_one_line(overrides):
    for model in ("tiny", "smollm2_sft"):
        with pytest.raises(
            UserError, match=r"^adapter=lora: needs a model of transformers without"
        ):
            rec_experiments.Experiment.compose("adapter=lora", f"model={model}")
    with pytest.raises(UserError, match=r"targets: w_q: no linear layer .* allowed: down_proj, "):
        prepare(experiment(*overrides, "model.lora.targets=[w_q]"))
    with pytest.raises(UserError, match="targets: lm_head: no linear layer"):
        prepare(experiment(*overrides, "model.lora.targets=[lm_head]"))
    with pytest.raises(UserError, match=r"lora\.rank=0: must be at least 1"):
        experiment(*overrides, "model.lora.rank=0")
    own = experiment(*overrides)
    with (
        mock.patch("importlib.util.find_spec", return_value=None),
        pytest.raises(UserError, match="peft is not installed; install this package with its"),
    ):
        prepare(own)
