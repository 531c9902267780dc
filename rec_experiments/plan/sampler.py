"""Memory of the sampler on a device."""

from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from rec_experiments.common.errors import UserError
from rec_experiments.config.experiment import Experiment
from rec_experiments.policy.models import Adapted
from rec_experiments.samplers.decoding import CACHE_AT_ONCE
from rec_experiments.samplers.vllm import Vllm

ITEMSIZE = {"float32": 4, "bfloat16": 2}
GB = 1e9


@dataclass(frozen=True, slots=True)
class SamplerMemory:
    """Bytes on a device. engine: what a step computes in. asleep: what remains while training has
    the device, or None if everything does. asked: what must be free when the engine starts."""

    weights: float
    cache: float
    engine: float
    asleep: float | None
    asked: float = 0.0

    @property
    def drawing(self) -> float:
        return self.weights + self.cache + self.engine


def sampler_memory(
    experiment: Experiment, weight_bytes: float, card: float, values: dict[str, float]
) -> SamplerMemory:
    """weight_bytes: of the model in its own dtype. card: bytes of a device. values: those of
    constants.yaml."""
    sampler, source = experiment.sampler, experiment.model
    own: str = getattr(source, "dtype", "float32")
    engine = values["engine_gb"] * GB
    if not isinstance(sampler, Vllm):
        merges = isinstance(source, Adapted)  # into a copy of float32
        held = weight_bytes * (4 / ITEMSIZE[own] if merges else 1)
        return SamplerMemory(held, CACHE_AT_ONCE, engine, None)
    share = ITEMSIZE[sampler.dtype or own] / ITEMSIZE[own]
    weights = weight_bytes * share / getattr(sampler, "tensor_parallel_size", 1)
    asked = sampler.gpu_memory_utilization * card
    fixed = sampler.kv_cache_memory_bytes
    cache = asked - weights - engine if fixed is None else float(fixed)
    asleep = values["asleep_gb"] * GB if sampler.sleep else None
    return SamplerMemory(weights, cache, engine, asleep, asked)


def cache_bytes_per_token(experiment: Experiment, config: PretrainedConfig) -> float:
    """Keys and values of one token, on a device."""
    sampler: Any = experiment.sampler
    source: Any = experiment.model
    dtype: str = getattr(sampler, "dtype", None) or source.dtype
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    parallel = getattr(sampler, "tensor_parallel_size", 1)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return config.num_hidden_layers * 2 * heads * width * ITEMSIZE[dtype] / parallel


def check_cache(experiment: Experiment, config: PretrainedConfig, memory: SamplerMemory) -> None:
    """Raise UserError if vLLM's cache is too small for one response: vLLM would not start."""
    engine, task = experiment.sampler, experiment.dataset
    longest = task.max_prompt_tokens + task.max_response_tokens
    needed = longest * cache_bytes_per_token(experiment, config)
    if not isinstance(engine, Vllm) or memory.cache >= needed:
        return
    key = "kv_cache_memory_bytes" if engine.kv_cache_memory_bytes else "gpu_memory_utilization"
    raise UserError(
        f"sampler.{key}={getattr(engine, key):g}: leaves {max(0, memory.cache) / GB:.2f} GB for "
        f"keys and values; a prompt and response of {longest} tokens need {needed / GB:.2f} GB"
    )
