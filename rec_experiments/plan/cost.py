"""Operations of a gradient step, and its time under the assumptions."""

import math
import sys
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from rec_experiments.config.experiment import Experiment
from rec_experiments.plan.passes import recomputes, rows_of_update
from rec_experiments.plan.sampler import GB, ITEMSIZE, SamplerMemory, cache_bytes_per_token
from rec_experiments.policy.head import REFERENCE
from rec_experiments.policy.models import Adapted
from rec_experiments.rollout.pipeline import Overlap
from rec_experiments.runs.parts import frozen_roles

FORWARD, BACKWARD = 2, 4  # operations per weight and token; of a frozen weight half the latter


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one gradient step. tokens: of the prompts and responses it trains on, without padding.
    trained: operations of its gradient, without those that checkpointing repeats. seconds: of each
    part; `step` is the whole step without evaluation and checkpoints. rate: response tokens that an
    engine draws in a second."""

    tokens: float
    trained: float
    rate: float
    seconds: dict[str, float]


def step_cost(
    experiment: Experiment,
    config: PretrainedConfig,
    sampler: SamplerMemory,
    gpu: dict[str, float],
    values: dict[str, float],
    parameters: float,
    state: float,
) -> Cost:
    """parameters: of the model. state: bytes of a checkpoint."""
    task, updates, ranks = experiment.dataset, experiment.updates, experiment.ranks
    source: Any = experiment.model
    prompt = min(values["prompt_tokens"], task.max_prompt_tokens)
    response = min(values["response_tokens"], task.max_response_tokens)
    length = prompt + response
    rows = experiment.batch_size * experiment.group_size / updates.mini_batches
    groups = experiment.buffer.fresh(experiment.batch_size)
    drawn = groups * experiment.group_size
    embedding = config.vocab_size * config.hidden_size
    trunk = parameters - embedding * (1 if config.tie_word_embeddings else 2)

    prompts = rows / experiment.group_size if source.shared_prompts else rows
    computed = prompts * prompt + rows * response
    if not (source.packed or source.shared_prompts):
        computed /= 1 - values["padding"]
    a_key = 2 * FORWARD * config.num_hidden_layers * config.hidden_size  # score and weighted sum
    forward = computed * (FORWARD * trunk + a_key * keys(experiment, prompt, response))
    forward += rows * response * FORWARD * embedding
    backward = BACKWARD / 2 if isinstance(source, Adapted) else BACKWARD
    trained = forward * (FORWARD + backward) / FORWARD
    again = forward * (extra_passes(experiment) + source.gradient_checkpointing)
    speed = ranks * gpu["operations"]  # of all training GPUs
    train = (trained + again) / (speed * values["train_efficiency"])

    engines = getattr(experiment.sampler, "tensor_parallel_size", 1)
    prefill = groups * prompt * FORWARD * trunk / (engines * speed * values["prefill_efficiency"])
    a_token = cache_bytes_per_token(experiment, config)
    most = getattr(experiment.sampler, "max_num_seqs", None) or math.inf
    # Draws of one version in one call, and responses that an engine decodes at once.
    calls = getattr(experiment.sampler, "batches_per_call", 1)
    together = min(calls, batches_between_pushes(experiment))
    wanted = together * drawn / ranks
    at_once = max(1.0, min(wanted, sampler.cache / (length * a_token), most))
    rounds = max(1.0, wanted / at_once)
    speed_of_reading = gpu["bandwidth"] * values["decode_efficiency"]
    overhead = values["step_overhead_ms"] / 1000
    read = sampler.weights + at_once * (prompt + response / 2) * a_token
    decode = rounds * response * (read / speed_of_reading + overhead)
    # The longest response goes on when the others have ended.
    longest = min(values["stragglers"] * response, task.max_response_tokens)
    decode += (longest - response) * (sampler.weights / speed_of_reading + overhead)
    decode /= together
    rate = drawn / ranks * response / decode
    if recomputes(experiment):
        decode += forward * drawn / rows / (speed * values["train_efficiency"])
    draw = (prefill + decode) / updates.per_batch

    pushed = ITEMSIZE[getattr(experiment.sampler, "dtype", None) or source.dtype] * parameters
    push = pushed / (values["push_gb_per_second"] * GB)
    push /= batches_between_pushes(experiment) * updates.per_batch
    overlaps = isinstance(experiment.pipeline, Overlap) and ahead(experiment)
    step = draw + push + train - (min(draw, train) if overlaps else 0.0)
    save = state / (values["save_gb_per_second"] * GB)
    seconds = {"draw": draw, "push": push, "train": train, "step": step, "save": save}
    return Cost(tokens=rows * length, trained=trained, rate=rate, seconds=seconds)


def keys(experiment: Experiment, prompt: float, response: float) -> float:
    """How many keys attention multiplies each token with, on average: with a mask all of its row,
    with flash attention those before it in its own sequence."""
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


def extra_passes(experiment: Experiment) -> float:
    """Forward passes of each row in a gradient step, without the one that has the gradient."""
    algorithm, updates = experiment.algorithm(), experiment.updates
    reference = float(algorithm.needs_reference)
    if experiment.kl_every and not reference:
        reference = 1 / experiment.kl_every
    moved = [role for role in frozen_roles(experiment) if role != REFERENCE]
    found = reference + len(moved) + algorithm.needs.whole_batch
    if updates.per_batch > 1 and "proximal" in algorithm.needs.logps:
        found += experiment.proximal.of_batch / updates.epochs  # once for all updates of a batch
    return found


def batches_between_pushes(experiment: Experiment) -> float:
    interval = experiment.sync.interval
    return experiment.steps if interval is None else interval


def ahead(experiment: Experiment) -> bool:
    """Whether the schedule lets a batch be sampled while another is trained on."""
    interval, offset = experiment.sync.interval, experiment.sync.offset
    return interval is None or interval + offset > 1
