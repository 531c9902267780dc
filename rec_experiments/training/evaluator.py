"""Evaluation of a model on held-out problems."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from rec_experiments.common import rng
from rec_experiments.common.batch import Rollouts
from rec_experiments.common.distributed import World
from rec_experiments.common.problems import Problem
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.rollout.worker import (
    RolloutRequest,
    RolloutWorker,
    Snapshot,
    sample_keys,
)
from rec_experiments.training.metrics import response_metrics
from rec_experiments.training.protocol import Row

SAMPLES_SHOWN = 4  # responses of each evaluation in samples.jsonl


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """samples: responses to each problem."""

    worker: RolloutWorker
    chat: ChatTemplate
    problems: list[Problem]
    samples: int
    temperature: float
    seed: int
    world: World

    def answer(self, model: PreTrainedModel, step: int) -> Rollouts:
        """Verified responses to all problems, of the model after `step` gradient steps."""
        mine = self.world.share(len(self.problems))
        groups = range(len(self.problems))[mine]
        keys = sample_keys(self.seed, rng.EVAL, step, groups, self.samples)
        request = RolloutRequest(self.problems[mine], keys, self.temperature)
        share = self.worker.answer(Snapshot.of(model, step), request)
        return Rollouts.of_parts(self.world.gather(share), step)

    def metrics(self, answers: Rollouts) -> Row:
        """For metrics.jsonl."""
        return {
            **response_metrics("eval", answers),
            "time/eval": sum(answers.seconds.values()),
        }

    def examples(self, answers: Rollouts, step: int) -> list[Row]:
        """For samples.jsonl: the first responses."""
        first = answers.rows(torch.arange(min(SAMPLES_SHOWN, len(answers))))
        rows = first.group_B.tolist(), first.tokens(), first.masks(), first.reward_B.tolist()
        return [
            {
                "step": step,
                "prompt": self.problems[group].messages[-1]["content"],
                "response": self.chat.transcript(tokens, mask),
                "answer": self.problems[group].expected,
                "reward": reward,
            }
            for group, tokens, mask, reward in zip(*rows, strict=True)
        ]
