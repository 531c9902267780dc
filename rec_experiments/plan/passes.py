"""The largest micro-batch that a run may meet."""

import sys
from typing import Any

from rec_experiments.common.batch import Sequences
from rec_experiments.config.experiment import Experiment


def recomputes(experiment: Experiment) -> bool:
    """Whether each process that samples also holds a copy of the trainer's model."""
    return "sampler" in experiment.algorithm().needs.logps


def largest_pass(experiment: Experiment, prompt_tokens: int) -> Sequences:
    """The rows of the largest micro-batch: at most those of a mini-batch that one rank computes,
    all of the maximal length.

    Each prompt has `prompt_tokens` tokens if a token limit bounds the micro-batch, else as many as
    the longest prompt that the data set allows.
    """
    source: Any = experiment.model
    task, limit = experiment.dataset, experiment.micro_batch_tokens
    P, T = task.max_prompt_tokens, task.max_response_tokens
    if limit is not None and limit >= P + T:
        P = min(prompt_tokens, P)
    groups = -(-experiment.batch_size // experiment.updates.mini_batches)
    rows = -(-groups * experiment.group_size // experiment.ranks)
    rows = min(rows, experiment.micro_batch_size or sys.maxsize)
    together = min(rows, experiment.group_size) if source.shared_prompts else 1  # of one prompt
    if limit:
        together = max(1, min(together, (limit - P) // T))
        rows = max(1, min(rows, limit // (P + together * T) * together))
    return Sequences.of([[i // together] * P for i in range(rows)], [[i] * T for i in range(rows)])
