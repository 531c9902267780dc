"""Batches of TRL's trainer and with verl's tensors, from the dump to the findings."""

import numpy as np
import pytest
import torch
from test_verl import Config, losses

import rec_experiments

pytest.importorskip("trl", reason="TRL is not installed: pip install trl")

SETTINGS = {
    "per_device_train_batch_size": 64, "num_generations": 8, "max_steps": 1, "use_cpu": True,
    "max_completion_length": 24, "bf16": False, "gradient_checkpointing": False,
    "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "learning_rate": 1e-5,
}  # fmt: skip


def reward(completion_ids: list[list[int]], **_) -> list[float]:
    return [float(sum(row) % 2) for row in completion_ids]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a random model over bytes and its tokenizer."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from rec_experiments.policy.models import byte_tokenizer

    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=2, num_key_value_heads=2, initializer_range=0.3,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )
    ).save_pretrained(folder)  # fmt: skip
    tokenizer.save_pretrained(folder)
    return folder


def dumped(model, folder, drawn_at: float, **settings):
    """The first batch of TRL's trainer, as docs/audit.md says. drawn_at: the sampler's temperature,
    whatever the trainer's is."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    class Audited(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            self.generation_config.temperature = drawn_at
            batch = super()._generate_and_score_completions(inputs)
            kept = {k: v for k, v in batch.items() if isinstance(v, torch.Tensor)}
            torch.save({**kept, "eos": self.processing_class.eos_token_id}, folder / "batch.pt")
            return batch

    prompts = [{"prompt": text} for text in ("a", "bcd", "efghi", "jk", "l", "mn", "opq", "rst")]
    Audited(
        model=str(model),
        args=GRPOConfig(output_dir=str(folder), **SETTINGS | settings),
        reward_funcs=reward,
        train_dataset=Dataset.from_list(prompts),
    ).train()
    return folder / "batch.pt"


@pytest.mark.parametrize(
    ("drawn_at", "settings", "faults"),
    [
        (1.0, {"model_init_kwargs": {"dtype": "float32"}}, []),
        (0.7, {"model_init_kwargs": {"dtype": "float32"}}, ["temperature"]),
        (1.0, {"model_init_kwargs": {"dtype": "float32"}, "top_p": 0.8}, ["truncated sampling"]),
    ],
)
def test_trl(drawn_at, settings, faults, model, tmp_path):
    report = rec_experiments.audit(dumped(model, tmp_path, drawn_at, **settings), model=model)
    assert [finding.fault for finding in report.findings] == faults
    assert report.statistics["responses"] == 64


def verl_batch() -> dict:
    """What verl's trainer holds before it updates the actor, with its own advantages and loss."""
    rng = torch.Generator().manual_seed(0)
    shape, uid = (64, 20), np.repeat([f"problem-{n}" for n in range(8)], 8).astype(object)
    lengths = torch.randint(4, 21, (64, 1), generator=rng)
    mask = (torch.arange(20) < lengths).double()
    old = -torch.rand(shape, generator=rng).double() * 3
    logp = (old + 0.1 * torch.randn(shape, generator=rng)).clamp(max=0)
    rewards = torch.zeros(shape).double()
    rewards[:, 0] = torch.randint(0, 2, (64,), generator=rng).double()
    advantages, _ = losses().compute_grpo_outcome_advantage(rewards, mask, uid)
    loss, _ = losses().get_policy_loss_fn("vanilla")(
        old_log_prob=old, log_prob=logp, advantages=advantages, response_mask=mask,
        loss_agg_mode="token-mean",
        config=Config(
            clip_ratio=0.2, clip_ratio_low=None, clip_ratio_high=None, clip_ratio_c=3.0,
            loss="vanilla", global_batch_info={},
        ),
    )  # fmt: skip
    prompts = torch.arange(8).repeat_interleave(8)[:, None] + torch.tensor([[5, 9, 2]])
    return {
        "prompts": prompts, "responses": torch.arange(64 * 20).reshape(shape) + 100,
        "response_mask": mask.long(), "attention_mask": torch.ones(64, 23).long(),
        "token_level_scores": rewards, "advantages": advantages, "old_log_probs": old,
        "logp": logp, "uid": list(uid), "loss": float(loss),
    }  # fmt: skip


def test_verl(tmp_path):
    batch = verl_batch()
    torch.save(batch, tmp_path / "batch.pt")
    report = rec_experiments.audit(tmp_path / "batch.pt")
    assert report.findings == []
    assert "clip=one_side correction=none aggregation=token_mean" in report.statistics["loss"]["is"]
    other = torch.arange(64) % 8
    wrong, _ = losses().compute_grpo_outcome_advantage(
        batch["token_level_scores"], batch["response_mask"].double(), other.numpy().astype(str)
    )
    torch.save({**batch, "advantages": wrong}, tmp_path / "mixed.pt")
    found = rec_experiments.audit(tmp_path / "mixed.pt").findings
    assert [finding.fault for finding in found] == ["mixed groups"]
