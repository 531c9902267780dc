"""Operations of a gradient step, and how long it would take if the assumptions hold."""

from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from rec_experiments.experiment import Experiment
from rec_experiments.plan.sampler import ITEMSIZE, SamplerMemory, cache_bytes_per_token
from rec_experiments.rollout.pipeline import Overlap

FORWARD, BACKWARD = 2, 4  # operations for each weight and token


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one gradient step. tokens: prompts and responses. trained: operations of training, without
    what checkpointing repeats. seconds: of each part; `step` is what they come to together, the
    evaluation and checkpoints apart."""

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
    prompt, response = values["prompt_tokens"], values["response_tokens"]
    rows = experiment.batch_size * experiment.group_size
    embedding = config.vocab_size * config.hidden_size
    trunk = weights - embedding * (1 if config.tie_word_embeddings else 2)
    length = prompt + response
    attention = 2 * config.num_hidden_layers * config.hidden_size * length  # causal: half of 4
    source: Any = experiment.model
    prompts = rows / experiment.group_size if source.shared_prompts else rows
    forward = FORWARD * trunk * (prompts * prompt + rows * response)
    forward += rows * (length * attention + response * FORWARD * embedding)
    trained = forward * (FORWARD + BACKWARD) / FORWARD
    again = forward if source.gradient_checkpointing else 0.0
    measured = forward / max(1, experiment.kl_every) if experiment.kl_every else 0.0
    ranks = experiment.ranks
    engines = ranks * getattr(experiment.sampler, "tensor_parallel_size", 1)
    training = (trained + again + measured) / (
        ranks * gpu["operations"] * values["train_efficiency"]
    )
    prefill = rows / experiment.group_size * prompt * FORWARD * trunk
    prefill /= engines * gpu["operations"] * values["prefill_efficiency"]
    at_once = concurrent(experiment, config, sampler, rows / ranks, values)
    rounds = max(1.0, rows / ranks / at_once)
    read = sampler.weights + at_once * (prompt + response / 2) * cache_bytes_per_token(
        experiment, config
    )
    decode = rounds * response * read / (gpu["bandwidth"] * values["decode_efficiency"])
    drawn = ITEMSIZE[getattr(experiment.sampler, "dtype", None) or source.dtype] * weights
    push = drawn / (values["push_gb_per_second"] * 1e9) / pushed_every(experiment)
    parts = {"draw": prefill + decode, "push": push, "train": training}
    beside = isinstance(experiment.pipeline, Overlap) and ahead(experiment)
    step = max(parts["draw"], training) + push if beside else sum(parts.values())
    save = state / (values["save_gb_per_second"] * 1e9)
    return Cost(
        tokens=rows * length, trained=trained, seconds={**parts, "step": step, "save": save}
    )


def concurrent(
    experiment: Experiment,
    config: PretrainedConfig,
    sampler: SamplerMemory,
    rows: float,
    values: dict[str, float],
) -> float:
    """Responses that one engine decodes at once: as many as it may, and as have room."""
    length = values["prompt_tokens"] + values["response_tokens"]
    room = sampler.cache / (length * cache_bytes_per_token(experiment, config))
    most = getattr(experiment.sampler, "max_num_seqs", None) or rows
    return max(1.0, min(rows, room, most))


def pushed_every(experiment: Experiment) -> float:
    """Gradient steps between two synchronisations."""
    interval = experiment.sync.interval
    return experiment.steps if interval is None else interval


def ahead(experiment: Experiment) -> bool:
    """Whether the schedule lets a batch be drawn while another is trained on."""
    interval, offset = experiment.sync.interval, experiment.sync.offset
    return interval is None or interval + offset > 1
