"""The largest micro-batch that a run may meet."""

import sys
from typing import Any

from rec_experiments.common.batch import Sequences
from rec_experiments.config.experiment import Experiment


def recomputes(experiment: Experiment) -> bool:
    """Whether each process that samples also holds a copy of the trainer's model."""
    return "sampler" in experiment.algorithm().needs.logps


def rows_of_update(experiment: Experiment) -> int:
    """The most rows of a mini-batch that one rank computes."""
    groups = -(-experiment.batch_size // experiment.updates.mini_batches)
    return -(-groups * experiment.group_size // experiment.ranks)


def prompt_length(experiment: Experiment, prompt_tokens: int) -> int:
    """Tokens of each prompt: `prompt_tokens` if a token limit bounds the micro-batch, else the
    longest prompt that the data set allows."""
    task, limit = experiment.dataset, experiment.micro_batch_tokens
    if limit is None or limit < task.max_prompt_tokens + task.max_response_tokens:
        return task.max_prompt_tokens
    return min(prompt_tokens, task.max_prompt_tokens)


def rows_of_pass(experiment: Experiment, prompt_tokens: int) -> tuple[int, int]:
    """Responses, all of the maximal length, in the largest micro-batch, and how many of them share
    a prompt."""
    source: Any = experiment.model
    T, P = experiment.dataset.max_response_tokens, prompt_length(experiment, prompt_tokens)
    limit = experiment.micro_batch_tokens
    rows = min(rows_of_update(experiment), experiment.micro_batch_size or sys.maxsize)
    together = min(rows, experiment.group_size) if source.shared_prompts else 1
    if limit:
        together = max(1, min(together, (limit - P) // T))
        rows = max(1, min(rows, limit // (P + together * T) * together))
    return rows, together


def largest_pass(experiment: Experiment, prompt_tokens: int) -> Sequences:
    """The rows of the largest micro-batch."""
    rows, together = rows_of_pass(experiment, prompt_tokens)
    T, P = experiment.dataset.max_response_tokens, prompt_length(experiment, prompt_tokens)
    return Sequences.of([[i // together] * P for i in range(rows)], [[i] * T for i in range(rows)])
