"""Operations of a gradient step, and how long it would take if the assumptions hold."""

import math
import sys
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from rec_experiments.config.experiment import Experiment
from rec_experiments.plan.passes import recomputes, rows_of_update
from rec_experiments.plan.sampler import ITEMSIZE, SamplerMemory, cache_bytes_per_token
from rec_experiments.policy.head import REFERENCE
from rec_experiments.rollout.pipeline import Overlap
from rec_experiments.runs.parts import frozen_roles

FORWARD, BACKWARD = 2, 4  # operations for each weight and token


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one gradient step. tokens: prompts and responses that it trains on, padding apart.
    trained: operations of its gradient, without what checkpointing repeats. seconds: of each part;
    `step` is what they come to together, the evaluation and checkpoints apart."""

    tokens: float
    trained: float
    seconds: dict[str, float]


def step_cost(
    experiment: Experiment,
    config: PretrainedConfig,
    sampler: SamplerMemory,
    gpu: dict[str, float],
    values: dict[str, float],
    weights: float,
    state: float,
) -> Cost:
    """weights: parameters of the model. state: bytes of a checkpoint."""
    task = experiment.dataset
    prompt = min(values["prompt_tokens"], task.max_prompt_tokens)
    response = min(values["response_tokens"], task.max_response_tokens)
    updates, groups = experiment.updates, experiment.buffer.fresh(experiment.batch_size)
    rows = experiment.batch_size * experiment.group_size / updates.mini_batches
    drawn = groups * experiment.group_size
    embedding = config.vocab_size * config.hidden_size
    trunk = weights - embedding * (1 if config.tie_word_embeddings else 2)
    length = prompt + response
    source: Any = experiment.model
    prompts = rows / experiment.group_size if source.shared_prompts else rows
    computed = prompts * prompt + rows * response
    if not (source.packed or source.shared_prompts):
        computed /= 1 - values["padding"]
    a_key = 2 * FORWARD * config.num_hidden_layers * config.hidden_size  # a product, and its sum
    forward = computed * (FORWARD * trunk + a_key * keys(experiment, prompt, response))
    forward += rows * response * FORWARD * embedding
    trained = forward * (FORWARD + BACKWARD) / FORWARD
    again = forward * (passes_beside(experiment) + source.gradient_checkpointing)
    ranks = experiment.ranks
    engines = ranks * getattr(experiment.sampler, "tensor_parallel_size", 1)
    training = (trained + again) / (ranks * gpu["operations"] * values["train_efficiency"])
    prefill = groups * prompt * FORWARD * trunk
    prefill /= engines * gpu["operations"] * values["prefill_efficiency"]
    room = sampler.cache / (length * cache_bytes_per_token(experiment, config))
    most = getattr(experiment.sampler, "max_num_seqs", None) or math.inf
    at_once = max(1.0, min(drawn / ranks, room, most))  # responses that an engine decodes
    rounds = max(1.0, drawn / ranks / at_once)
    read = sampler.weights + at_once * (prompt + response / 2) * cache_bytes_per_token(
        experiment, config
    )
    decode = rounds * response * read / (gpu["bandwidth"] * values["decode_efficiency"])
    if recomputes(experiment):  # of all rows that were drawn, by the device that drew them
        decode += forward * drawn / rows / (ranks * gpu["operations"] * values["train_efficiency"])
    pushed = ITEMSIZE[getattr(experiment.sampler, "dtype", None) or source.dtype] * weights
    push = pushed / (values["push_gb_per_second"] * 1e9) / pushed_every(experiment)
    draw = (prefill + decode) / updates.per_batch
    parts = {"draw": draw, "push": push / updates.per_batch, "train": training}
    beside = isinstance(experiment.pipeline, Overlap) and ahead(experiment)
    step = sum(parts.values()) - (min(draw, training) if beside else 0.0)
    save = state / (values["save_gb_per_second"] * 1e9)
    return Cost(
        tokens=rows * length, trained=trained, seconds={**parts, "step": step, "save": save}
    )


def keys(experiment: Experiment, prompt: float, response: float) -> float:
    """Keys that attention multiplies a token with, on average: all of its row where it has a mask,
    or those before it in its own sequence."""
    source: Any = experiment.model
    length = prompt + response
    if source.attention.startswith("flash"):
        return length / 2
    row = length
    if source.packed:
        rows = min(rows_of_update(experiment), experiment.micro_batch_size or sys.maxsize)
        row = rows * length
    elif source.shared_prompts:
        row = prompt + experiment.group_size * response
    return max(length, min(row, experiment.micro_batch_tokens or math.inf))


def passes_beside(experiment: Experiment) -> float:
    """Forward passes of each row in a gradient step beside the one that has the gradient."""
    algorithm, updates = experiment.algorithm(), experiment.updates
    reference = float(algorithm.needs_reference)
    if experiment.kl_every and not reference:
        reference = 1 / experiment.kl_every
    moved = [role for role in frozen_roles(experiment) if role != REFERENCE]
    found = reference + len(moved) + algorithm.needs.whole_batch
    if updates.per_batch > 1 and "proximal" in algorithm.needs.logps:
        found += experiment.proximal.of_batch / updates.epochs  # once for all of a batch's updates
    return found


def pushed_every(experiment: Experiment) -> float:
    """Batches between two synchronisations."""
    interval = experiment.sync.interval
    return experiment.steps if interval is None else interval


def ahead(experiment: Experiment) -> bool:
    """Whether the schedule lets a batch be drawn while another is trained on."""
    interval, offset = experiment.sync.interval, experiment.sync.offset
    return interval is None or interval + offset > 1
