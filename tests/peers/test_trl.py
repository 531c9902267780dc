"""TRL's GRPOTrainer and this package: the same gradient for every token, method by method.

Its own `_compute_loss` runs on given log-probabilities; of the trainer there is only what it reads.
And the other way round: what `export-loss` writes, in a training of TRL's. Skipped where TRL is not
installed.
"""

import math
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from batches import LENGTH, batch, name, ours, rows, same

import rec_experiments
from rec_experiments.cli import export_loss

pytest.importorskip("trl", reason="TRL is not installed: pip install trl")


def defaults() -> dict:
    """Those of GRPOConfig, as far as they are plain values."""
    from dataclasses import fields

    from trl import GRPOConfig

    return {field.name: field.default for field in fields(GRPOConfig)}


def importance_ratio(args: SimpleNamespace, x: dict) -> torch.Tensor:
    """As `_generate_and_score_completions` has it, which cannot run alone."""
    log_ratio = (x["behavior"] - x["sampler"]) * x["mask"]
    if args.vllm_importance_sampling_mode.startswith("sequence"):
        log_ratio = log_ratio.sum(-1, keepdim=True)
    ratio = log_ratio.exp()
    low = args.vllm_importance_sampling_clip_min
    low = -math.inf if low is None else low
    high = args.vllm_importance_sampling_clip_max
    if args.vllm_importance_sampling_mode.endswith("truncate"):
        return ratio.clamp(low, high)
    return ratio.masked_fill((ratio < low) | (ratio > high), 0.0)


def theirs(row: dict, x: dict) -> torch.Tensor:
    """∂ loss / ∂ logp of TRL, B x T."""
    from trl import GRPOTrainer

    args = SimpleNamespace(**{**defaults(), "beta": 0.0, **row["call"], "steps_per_generation": 1})
    logp = x["logp"].clone().requires_grad_()
    given = row.get("given")
    trainer = GRPOTrainer.__new__(GRPOTrainer)
    high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    for key, value in {
        "args": args,
        "beta": args.beta,
        "loss_type": args.loss_type,
        "importance_sampling_level": args.importance_sampling_level,
        "epsilon_low": args.epsilon,
        "epsilon_high": high,
        "max_completion_length": args.max_completion_length,
        "use_vllm": given == "sampler",
        "vllm_importance_sampling_correction": given == "sampler",
        "off_policy_mask_threshold": args.off_policy_mask_threshold,
        "top_entropy_quantile": 1.0,
        "aux_loss_enabled": False,
        "_entropy_bonus_enabled": False,
        "current_gradient_accumulation_steps": 1,
        "model": SimpleNamespace(training=True),
        "_metrics": defaultdict(lambda: defaultdict(list)),
        "accelerator": SimpleNamespace(
            num_processes=1,
            sync_gradients=False,
            gather=lambda tensor: tensor,
            reduce=lambda tensor, reduction: tensor,
        ),
        "_get_per_token_logps_and_entropies": lambda *a, **k: (logp, torch.zeros_like(logp), None),
    }.items():
        setattr(trainer, key, value)
    none = torch.zeros(len(logp), 0, dtype=torch.long)
    inputs = {
        "prompt_ids": none,
        "prompt_mask": none,
        "completion_ids": torch.zeros(len(logp), LENGTH, dtype=torch.long),
        "completion_mask": x["mask"].to(logp.dtype),
        "advantages": x["advantages"],
        "old_per_token_logps": x["behavior"],
        "ref_per_token_logps": x["reference"],
        "num_items_in_batch": x["mask"].sum(),
    }
    if given == "sampler":
        inputs["importance_sampling_ratio"] = importance_ratio(args, x)
    trainer._compute_loss(trainer.model, inputs).backward()
    return logp.grad


@pytest.mark.parametrize("row", rows("trl"), ids=name)
@pytest.mark.parametrize("spread", [0.01, 0.3, 2.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_gradient_is_trls(row, spread, seed):
    x = batch(seed, spread)
    same(row, theirs(row, x), ours(row, x))


def test_every_loss_of_trl_has_a_row():
    import inspect
    import re

    from trl import GRPOTrainer

    source = inspect.getsource(GRPOTrainer._compute_loss)
    kinds = set(re.findall(r'"([a-z_]+)"', " ".join(re.findall(r"self\.loss_type [^:]*:", source))))
    assert kinds == {row["call"]["loss_type"] for row in rows("trl") + rows("trl", False)}


TRAINING = {
    "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 4,
    "num_iterations": 2, "max_steps": 2, "max_completion_length": 6, "optim": "sgd",
    "learning_rate": 3.0, "lr_scheduler_type": "constant", "max_grad_norm": 1e9, "use_cpu": True,
    "bf16": False, "gradient_checkpointing": False, "report_to": "none", "save_strategy": "no",
    "disable_tqdm": True, "loss_type": "dr_grpo", "epsilon": 1e-6,
}  # fmt: skip


def even(completion_ids: list[list[int]], **_) -> list[float]:
    """A reward: the share of even tokens."""
    return [sum(token % 2 == 0 for token in row) / len(row) for row in completion_ids]


def trained(preset: str, folder, **changes) -> list[dict]:
    """Two gradient steps on one draw of 4 prompts, by the exported trainer: what each micro-batch
    of a step was given, weights before the step, and the gradient."""
    from datasets import Dataset
    from transformers import Qwen2Config, Qwen2ForCausalLM, TrainerCallback
    from trl import GRPOConfig

    from rec_experiments.policy.models import byte_tokenizer

    namespace: dict = {}
    exec(export_loss.text(preset, [], "trl", "exported"), namespace)
    steps: list[dict] = []

    class Kept(TrainerCallback):
        def on_step_begin(self, *_, model, **__):
            weights = {name: x.detach().clone() for name, x in model.named_parameters()}
            steps.append({"micro_batches": [], "weights": weights})

        def on_pre_optimizer_step(self, *_, model, **__):
            steps[-1]["gradient"] = {name: x.grad.clone() for name, x in model.named_parameters()}

    class Watched(namespace["Trainer"]):
        def _compute_loss(self, model, inputs):
            steps[-1]["micro_batches"].append(dict(inputs))
            return super()._compute_loss(model, inputs)

    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, initializer_range=0.3,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )
    )  # fmt: skip
    model.save_pretrained(folder)  # where TRL finds the reference policy
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompts = [{"prompt": text} for text in ("a", "bcd", "efghi", "jk")]
    trainer = Watched(
        model=model,
        args=GRPOConfig(output_dir=str(folder), **TRAINING | changes),
        reward_funcs=even,
        train_dataset=Dataset.from_list(prompts),
        processing_class=tokenizer,
        callbacks=[Kept()],
    )
    trainer.train()
    assert all(name.startswith("train_") or "/" not in name for name in trainer._metrics["train"])
    return [{**step, "model": model} for step in steps]


def logps(model, weights: dict, rows: list[tuple[list, list]]) -> torch.Tensor:
    """Of responses under these weights, B x T, row by row and without padding."""
    width = max(len(response) for _, response in rows)
    found = []
    for prompt, response in rows:
        ids = torch.tensor([prompt + response])
        logits = torch.func.functional_call(model, weights, (ids,)).logits[0, :-1].log_softmax(-1)
        logp = logits.gather(1, ids[0, 1:, None])[len(prompt) - 1 :, 0]
        found.append(torch.nn.functional.pad(logp, (0, width - len(response))))
    return torch.stack(found)


@pytest.mark.parametrize(
    ("preset", "changes"),
    [("grpo", {}), ("rec_ring", {}), ("opo", {}), ("gspo", {}), ("grpo_kl", {"beta": 1e-3})],
)
def test_exported_trainer(preset, changes, tmp_path):
    """The gradient of every parameter is that of the public call on the whole batch, rewards
    included, on-policy and off it."""
    steps = trained(preset, tmp_path, **changes)
    assert len(steps) == 2
    for step in steps:
        rows = [
            (prompt[prompt_mask.bool()].tolist(), response[mask.bool()].tolist())
            for each in step["micro_batches"]
            for prompt, prompt_mask, response, mask in zip(
                each["prompt_ids"], each["prompt_mask"], each["completion_ids"],
                each["completion_mask"], strict=True,
            )
        ]  # fmt: skip
        assert len(rows) == 16
        prompts = sorted({tuple(prompt) for prompt, _ in rows})
        weights = {name: x.clone().requires_grad_() for name, x in step["weights"].items()}
        first = logps(step["model"], steps[0]["weights"], rows).detach()
        out = rec_experiments.algorithm(preset)(
            logp=logps(step["model"], weights, rows),
            behavior_logp=first,
            reference_logp=first,
            rewards=torch.tensor(even([response for _, response in rows])),
            groups=torch.tensor([prompts.index(tuple(prompt)) for prompt, _ in rows]),
            mask=torch.arange(first.shape[1]) < torch.tensor([len(r) for _, r in rows])[:, None],
        )
        out.loss.backward()
        expected = torch.cat([x.grad.flatten() for x in weights.values()])
        found = torch.cat([step["gradient"][name].flatten() for name in weights])
        assert expected.norm() > 1e-3
        assert (found - expected).norm() < 1e-5 * expected.norm()
    assert out.metrics["train/clip_fraction"] > 0 or preset == "opo"  # the second is off-policy
    assert out.metrics["train/log_ratio_second_moment"] > 1e-4
