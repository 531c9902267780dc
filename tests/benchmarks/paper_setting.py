"""Speed and memory at the size of the paper's GSM8K runs: Qwen2.5-1.5B with random weights.

Run `python tests/benchmarks/paper_setting.py` on a GPU; `--small` tries the script on any machine.
Draws 96 x 8 responses of a fixed length and takes one gradient step on them, both twice, the second
time measured. Prints tokens per second, model FLOP utilisation and peak memory, with date and
device. Nothing is downloaded.
"""

import argparse
import dataclasses
import datetime
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

import rec_experiments
from rec_experiments.algo.loss import Algorithm
from rec_experiments.common.batch import Rollouts, SampleKey, StepIndex
from rec_experiments.common.problems import VerifierResult
from rec_experiments.common.protocols import Sampler
from rec_experiments.common.rng import TRAIN
from rec_experiments.policy.batching import Limits
from rec_experiments.policy.logprobs import ForwardPass
from rec_experiments.samplers.native import Native
from rec_experiments.samplers.vllm import Vllm
from rec_experiments.training.gradient import GradientPass, MiniBatch

# Dense bfloat16 FLOP/s as their maker states them, by a part of the device's name.
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12}


@dataclasses.dataclass(frozen=True)
class Size:
    """A model and a batch. prompt, response: tokens, the same for every row."""

    model: dict[str, Any]
    prompts: int
    draws: int
    prompt: int
    response: int
    micro_batch_tokens: int


PAPER = Size(
    model={
        "vocab_size": 151_936, "hidden_size": 1536, "intermediate_size": 8960,
        "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
    },
    prompts=96, draws=8, prompt=160, response=256, micro_batch_tokens=16_384,
)  # fmt: skip
SMALL = Size(
    model={
        "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 256,
    },
    prompts=4, draws=2, prompt=16, response=16, micro_batch_tokens=128,
)  # fmt: skip


def random_model(size: Size, device: torch.device) -> PreTrainedModel:
    """Weights in float32, as the trainer keeps them. No end token: no response ends early."""
    config = Qwen2Config(**size.model, tie_word_embeddings=True, eos_token_id=None)
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(config).to(device)
    model.gradient_checkpointing_enable()
    return model


def sampler_of(name: str, model: PreTrainedModel, size: Size) -> Sampler:
    if name == "native":
        config: Any = Native(
            temperature=1.0, eval_temperature=1.0, max_rows=None, bundle_bytes=0, kind=name
        )
    else:
        config = Vllm(
            temperature=1.0, eval_temperature=1.0, dtype="bfloat16",
            max_num_seqs=512, batches_per_call=1, gpu_memory_utilization=0.3,
            kv_cache_memory_bytes=None, enforce_eager=False, sleep=True, kind=name,
        )  # fmt: skip
    return config.build(model, [], 0, size.prompt, size.response)


def measured(work: Callable[[], Any], device: torch.device) -> tuple[Any, float, int]:
    """Result, seconds and peak bytes of the device's memory of the second of two calls."""
    work()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    started = time.perf_counter()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    return result, seconds, torch.cuda.max_memory_allocated() if device.type == "cuda" else 0


def train_flops(model: PreTrainedModel, size: Size) -> float:
    """Of one gradient step, forward and backward: 6 for each weight of a matrix and token, 12 L D
    for each token and token it attends to, half of them under the causal mask. The forward pass
    that gradient checkpointing repeats does not count, nor does the head on the prompt."""
    config, width = model.config, size.prompt + size.response
    rows = size.prompts * size.draws
    embedding = config.vocab_size * config.hidden_size
    trunk = sum(p.numel() for p in model.parameters()) - embedding
    attention = 12 * config.num_hidden_layers * config.hidden_size * width / 2
    return rows * (width * (6 * trunk + attention) + size.response * 6 * embedding)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="a size for any machine")
    parser.add_argument("--sampler", choices=("native", "vllm"), default="native")
    parser.add_argument("--out", type=Path, help="append the result to this file of JSON lines")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not options.small:
        parser.error("no CUDA device here; --small tries the script without one")
    size = SMALL if options.small else PAPER
    model = random_model(size, device)
    sampler = sampler_of(options.sampler, model, size)
    sampler.load(model.state_dict())
    prompts = torch.randint(size.model["vocab_size"], (size.prompts, size.prompt)).tolist()
    draws = [[SampleKey(0, TRAIN, 0, g, k) for k in range(size.draws)] for g in range(size.prompts)]

    responses, seconds, sampling_peak = measured(
        lambda: sampler.sample(prompts, draws, temperature=1.0), device
    )
    tokens = int(responses.length_B.sum())
    rollouts = Rollouts.verified(
        responses,
        prompts=[prompt for prompt in prompts for _ in range(size.draws)],
        groups=[group for group in range(size.prompts) for _ in range(size.draws)],
        results=[VerifierResult(float(i % 2), float(i % 2)) for i in range(len(responses))],
    )
    algorithm: Algorithm = rec_experiments.algorithm("rec_oneside_nois").parts
    gradient = GradientPass(
        algorithm=algorithm,
        forward=ForwardPass(pad_id=0, temperature=1.0, compute_dtype=torch.bfloat16),
        limits=Limits(sequences=None, tokens=size.micro_batch_tokens),
    )
    first = StepIndex(batch=0, epoch=0, mini_batch=0, step=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def step() -> None:
        gradient.accumulate(model, MiniBatch.of(rollouts, algorithm, first, seed=0, model=model))
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    _, step_seconds, training_peak = measured(step, device)
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    peak = next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
    result = {
        "date": datetime.date.today().isoformat(),
        "device": name,
        "sampler": options.sampler,
        "size": "small" if options.small else "Qwen2.5-1.5B, 96 x 8 responses",
        "prompt_tokens": size.prompt,
        "response_tokens": size.response,
        "sampled_tokens_per_second": round(tokens / seconds),
        "trained_response_tokens_per_second": round(tokens / step_seconds),
        "trained_tokens_per_second": round(
            len(responses) * (size.prompt + size.response) / step_seconds
        ),
        "model_flop_utilisation": peak and round(train_flops(model, size) / step_seconds / peak, 3),
        "sampling_peak_gb": round(sampling_peak / 1e9, 2),
        "training_peak_gb": round(training_peak / 1e9, 2),
    }
    print(json.dumps(result, indent=2))
    if options.out:
        with options.out.open("a") as file:
            file.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
