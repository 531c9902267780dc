"""Operations of a gradient step, and the time that they take by the constants of a plan.

Left out: prompts that the sampler reads, and draws of several batches in one call.
"""

import math
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from rec_experiments.config.experiment import Experiment
from rec_experiments.plan.memory import recomputes
from rec_experiments.plan.sampler import GB, ITEMSIZE, SamplerMemory, cache_bytes_per_token
from rec_experiments.policy.models import Adapted
from rec_experiments.rollout.pipeline import Overlap
from rec_experiments.runs.prepare import frozen_roles

FORWARD, BACKWARD = 2, 4  # operations per weight and token; of a frozen weight half the latter


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one gradient step. tokens: prompt and response tokens, without padding. trained:
    operations of its gradient, without those that checkpointing repeats. seconds: of each part;
    `step` is the whole step without evaluation and checkpoints. rate: response tokens that an
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
    rows = experiment.batch_size * experiment.group_size / updates.mini_batches
    drawn = experiment.buffer.fresh(experiment.batch_size) * experiment.group_size
    embedding = config.vocab_size * config.hidden_size
    trunk = parameters - embedding * (1 if config.tie_word_embeddings else 2)

    prompts = rows / experiment.group_size if source.shared_prompts else rows
    computed = prompts * prompt + rows * response
    if not (source.packed or source.shared_prompts):
        computed /= 1 - values["padding"]
    a_key = 2 * FORWARD * config.num_hidden_layers * config.hidden_size  # score and weighted sum
    keys = prompt + response
    if source.packed and not source.attention.startswith("flash"):  # those of others, masked
        keys = max(keys, experiment.micro_batch_tokens or rows * keys)
    forward = computed * (FORWARD * trunk + a_key * keys)
    forward += rows * response * FORWARD * embedding
    backward = BACKWARD / 2 if isinstance(source, Adapted) else BACKWARD
    trained = forward * (FORWARD + backward) / FORWARD
    again = forward * (extra_passes(experiment) + source.gradient_checkpointing)
    speed = ranks * gpu["operations"] * values["train_efficiency"]  # of all training GPUs
    train = (trained + again) / speed

    a_token = cache_bytes_per_token(experiment, config)
    most = getattr(experiment.sampler, "max_num_seqs", None) or math.inf
    engines = len(getattr(experiment.sampler, "urls", range(ranks)))
    wanted = drawn / engines  # responses of one of them, of which it decodes some at once
    at_once = max(1.0, min(wanted, sampler.cache / ((prompt + response) * a_token), most))
    reading = gpu["bandwidth"] * values["decode_efficiency"]
    overhead = values["engine_us_per_token"] / 1e6
    read = sampler.weights + at_once * (prompt + response / 2) * a_token
    decode = max(1.0, wanted / at_once) * response * (read / reading + at_once * overhead)
    # The longest response goes on when the others have ended.
    longest = min(values["stragglers"] * response, task.max_response_tokens)
    decode += (longest - response) * (sampler.weights / reading + overhead)
    rate = wanted * response / decode
    if recomputes(experiment):
        decode += forward * drawn / rows / speed
    draw = decode / updates.per_batch

    interval, offset = experiment.sync.interval, experiment.sync.offset
    pushed = ITEMSIZE[getattr(experiment.sampler, "dtype", None) or source.dtype] * parameters
    push = pushed / (values["push_gb_per_second"] * GB)
    push /= (interval or experiment.steps) * updates.per_batch
    # Whether a batch may be sampled while another is trained on.
    overlaps = isinstance(experiment.pipeline, Overlap) and (
        interval is None or interval + offset > 1
    )
    step = draw + push + train - (min(draw, train) if overlaps else 0.0)
    save = state / ranks / (values["save_gb_per_second"] * GB)
    seconds = {"draw": draw, "push": push, "train": train, "step": step, "save": save}
    return Cost(rows * (prompt + response), trained, rate, seconds)


def extra_passes(experiment: Experiment) -> float:
    """Forward passes of each row in a gradient step, without the one that has the gradient."""
    algorithm = experiment.algorithm()
    measured = 1.0 if algorithm.needs_reference else 1 / max(1, experiment.kl_every)
    passes = [measured if role == "reference" else 1.0 for role in frozen_roles(experiment)]
    return sum(passes) + algorithm.needs.whole_batch
