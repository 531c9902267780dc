"""Memory of what draws, on a device."""

from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from rec_experiments.config.experiment import Experiment
from rec_experiments.samplers.decoding import CACHE_AT_ONCE
from rec_experiments.samplers.vllm import Vllm

ITEMSIZE = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class SamplerMemory:
    """Bytes on a device. weights, cache, engine: while it draws, the last for what a step computes
    in. asleep: while training has the device; None if all of it stays. asked: what must be free
    when it starts."""

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
    """Of the experiment's sampler. weight_bytes: of the model in its own dtype. card: bytes of a
    device. values: those of assumptions.yaml."""
    sampler, source = experiment.sampler, experiment.model
    own: str = getattr(source, "dtype", "float32")
    if not isinstance(sampler, Vllm):
        return SamplerMemory(weight_bytes, CACHE_AT_ONCE, values["engine_gb"] * 1e9, None)
    share = ITEMSIZE[sampler.dtype or own] / ITEMSIZE[own] / sampler.tensor_parallel_size
    weights, engine = weight_bytes * share, values["engine_gb"] * 1e9
    named = sampler.kv_cache_memory_bytes
    asked = sampler.gpu_memory_utilization * card
    cache = asked - weights - engine if named is None else float(named)
    asleep = values["asleep_gb"] * 1e9 if sampler.sleep else None
    return SamplerMemory(weights, cache, engine, asleep, asked)


def cache_bytes_per_token(experiment: Experiment, config: PretrainedConfig) -> float:
    """Keys and values of one token, on a device."""
    sampler: Any = experiment.sampler
    source: Any = experiment.model
    dtype: str = getattr(sampler, "dtype", None) or source.dtype
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    parallel = getattr(sampler, "tensor_parallel_size", 1)
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    a_layer = 2 * heads * width * ITEMSIZE[dtype]
    return config.num_hidden_layers * a_layer / parallel
