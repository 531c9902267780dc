"""TRL's GRPOTrainer: `trl_trainer.py FOLDER NAME VARIANT`."""

import sys
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer import grpo_trainer
from work import NEVER_CLIPPED, Pace, Work, keep_first_gradient

# What each variant adds. "default" leaves everything to TRL that is not part of the work: passes of
# 8 rows, with activations computed again in the backward pass.
ONE_PASS = {"gradient_checkpointing": False, "loss_type": "bnpo", "logging_steps": 1000}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "one_pass": ONE_PASS,
    "passes_of_16": {**ONE_PASS, "loss_type": "dapo", "per_device_train_batch_size": 16},
}
DEFAULT_ROWS = 8


def config(work: Work, variant: str) -> GRPOConfig:
    chosen = VARIANTS[variant]
    rows = DEFAULT_ROWS if variant == "default" else work.rows
    rows = chosen.get("per_device_train_batch_size", rows)
    passes = work.rows // rows
    return GRPOConfig(
        **{
            "output_dir": f"{work.folder}/{variant}",
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
            "use_cpu": True,
            "bf16": False,  # float32, as all others
            "max_steps": 100_000,
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": passes,
            "steps_per_generation": passes * work.interval,
            "num_generations": work.group_size,
            "max_completion_length": work.limit,
            "shuffle_dataset": False,
            "scale_rewards": "none",
            "learning_rate": work.learning_rate,
            "lr_scheduler_type": "constant",
            "weight_decay": 0.01,
            "max_grad_norm": NEVER_CLIPPED,
            **chosen,
        }
    )


class Watched(GRPOTrainer):
    """Tells the pace what was drawn; the first draw is given."""

    def __init__(self, work: Work, pace: Pace, **options: Any):
        super().__init__(**options)
        self.work, self.pace, self.begun = work, pace, False

    def _generate_single_turn(self, prompt_ids: list, *rest: Any, **options: Any) -> tuple:
        if not self.begun:
            self.begun = True
            given = self.work.first_draw(prompt_ids[:: self.work.group_size])
            return [row["tokens"] for row in given], None
        with self.pace.sampling():
            drawn = super()._generate_single_turn(prompt_ids, *rest, **options)
        self.pace.tokens += sum(map(len, drawn[0]))
        return drawn


class Steps(TrainerCallback):
    def __init__(self, pace: Pace):
        self.pace = pace

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.pace.ready()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.pace.stepped()


def run(work: Work, name: str, variant: str) -> None:
    pace = Pace()
    # Rows of one draw in order, so that the first batch is the one that the others train on.
    grpo_trainer.shuffle_sequence_dict = lambda rows: rows
    tokenizer = AutoTokenizer.from_pretrained(work.model)
    model = AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.float32)

    def reward(completions: list[str], answer: list[str], **_: Any) -> list[float]:
        return [work.reward(text, of) for text, of in zip(completions, answer, strict=True)]

    trainer = Watched(
        work,
        pace,
        model=model,
        args=config(work, variant),
        reward_funcs=reward,
        train_dataset=Dataset.from_list(work.problems()),
        processing_class=tokenizer,
        callbacks=[Steps(pace)],
    )
    keep_first_gradient(work, name, model)
    trainer.train()


if __name__ == "__main__":
    run(Work.load(sys.argv[1]), *sys.argv[2:])
