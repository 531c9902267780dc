"""TRL's GRPOTrainer and this package: the same gradient for every token, method by method.

Its own `_compute_loss` runs on given log-probabilities; of the trainer there is only what it reads.
Skipped where TRL is not installed.
"""

import math
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from batches import LENGTH, batch, name, ours, rows, same

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
        "off_policy_mask_threshold": None,
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
