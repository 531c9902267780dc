"""The largest pass that a run may meet."""

import sys
from typing import Any

import torch

from rec_experiments.config.experiment import Experiment
from rec_experiments.training.gradient import MiniBatch
from rec_experiments.training.trainer import measures_kl
from rec_experiments.types import Response, Rollouts, StepIndex, VerifierResult


def recomputes(experiment: Experiment) -> bool:
    """Whether what draws has a copy of the trainer's model beside its own weights."""
    return "sampler" in experiment.algorithm().needs.logps


def rows_of_update(experiment: Experiment) -> int:
    """The most rows of a mini-batch that one rank computes."""
    groups = -(-experiment.batch_size // experiment.updates.mini_batches)
    return -(-groups * experiment.group_size // experiment.ranks)


def pass_of(experiment: Experiment, prompt_tokens: int) -> tuple[int, int]:
    """Responses of a pass that is as large as the limits and the mini-batch allow, and how many of
    them share a prompt. Responses are of full length."""
    source: Any = experiment.model
    T = experiment.dataset.max_response_tokens
    P = prompt_of(experiment, prompt_tokens)
    limit = experiment.micro_batch_tokens
    rows = min(rows_of_update(experiment), experiment.micro_batch_size or sys.maxsize)
    together = min(rows, experiment.group_size) if source.shared_prompts else 1
    if limit:
        together = max(1, min(together, (limit - P) // T))
        rows = max(1, min(rows, limit // (P + together * T) * together))
    return rows, together


def prompt_of(experiment: Experiment, prompt_tokens: int) -> int:
    """Tokens of each prompt in such a pass: `prompt_tokens`, or the most that are allowed where no
    limit of tokens keeps a pass from holding them."""
    task, limit = experiment.dataset, experiment.micro_batch_tokens
    if limit is None or limit < task.max_prompt_tokens + task.max_response_tokens:
        return task.max_prompt_tokens
    return min(prompt_tokens, task.max_prompt_tokens)


def full_pass(experiment: Experiment, prompt_tokens: int) -> Rollouts:
    """The rows of one pass that is as large as it may be."""
    rows, together = pass_of(experiment, prompt_tokens)
    T = experiment.dataset.max_response_tokens
    P = prompt_of(experiment, prompt_tokens)
    logp = [[-1.0] * T for _ in range(rows)]
    return Rollouts(
        index=0,
        prompts=[[i // together] * P for i in range(rows)],
        responses=[Response([i] * T, logp[i], True, [True] * T) for i in range(rows)],
        results=[VerifierResult(reward=float(i % 2), accuracy=float(i % 2)) for i in range(rows)],
        groups=[0] * rows,
        versions=[0] * rows,
        logps={"behavior": logp} if recomputes(experiment) else {},
    )


def batch_of(experiment: Experiment, rollouts: Rollouts) -> MiniBatch:
    """The rows as an update gets them that measures KL, if any does."""
    update = next(n for n in range(1 << 20) if measures_kl(experiment.kl_every or 1, n))
    index = StepIndex(batch=0, epoch=0, mini_batch=0, step=update)
    source: Any = experiment.model
    like: Any = torch.nn.Linear(1, 1, dtype=getattr(torch, source.dtype))
    return MiniBatch.of(rollouts, experiment.algorithm(), index, experiment.seed, like)
