"""A quarter of an hour of one GPU, spent on what no CPU tells: what each switch of the trainer is
worth at the size of the paper's GSM8K runs, Qwen2.5-1.5B with random weights.

Run `python tests/benchmarks/gpu_quarter.py --out FILE` on a GPU (`--small` tries the script on any
machine, `--only NAME …` runs some parts). Parts run in the order of their worth, and none begins
after `--budget` seconds. Each appends a line to FILE when it ends, with date, device and versions.
A part of the trainer is a gradient step on 96 x 8 responses whose lengths vary as on GSM8K, so that
padding counts; it is measured the second time. Nothing is downloaded.
"""

import argparse
import contextlib
import copy
import dataclasses
import datetime
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts

import torch
import transformers
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

import rec_experiments
from rec_experiments.common.batch import Responses, Rollouts, SampleKey, StepIndex
from rec_experiments.common.distributed import copied_to_host
from rec_experiments.common.problems import VerifierResult
from rec_experiments.common.rng import TRAIN, generator
from rec_experiments.policy import logprobs
from rec_experiments.policy.batching import Limits
from rec_experiments.policy.compiled import compile_layers
from rec_experiments.policy.logprobs import ForwardPass
from rec_experiments.runs.checkpoints import stream
from rec_experiments.samplers.decoding import NativeSampler
from rec_experiments.training.gradient import GradientPass, MiniBatch

# Dense bfloat16 FLOP/s as their maker states them, by a part of the device's name.
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12}
SPREAD = 0.45  # standard deviation of the logarithm of a response's length


@dataclasses.dataclass(frozen=True)
class Size:
    """A model and a batch. prompt, response: tokens, on average."""

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


class Bench:
    """A model, a batch and the parts that are measured with them."""

    def __init__(self, size: Size, device: torch.device):
        self.size, self.device = size, device
        config = Qwen2Config(**size.model, tie_word_embeddings=True, eos_token_id=None)
        torch.manual_seed(0)
        self.model: PreTrainedModel = Qwen2ForCausalLM(config).to(device)
        self.rollouts = rollouts_of(size)
        self.algorithm = rec_experiments.algorithm("rec_oneside_nois").parts
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-6, fused=device.type == "cuda"
        )

    def parts(self) -> dict[str, Callable[[], dict[str, Any]]]:
        short = self.size.micro_batch_tokens // 4
        return {
            "default (deterministic)": lambda: self.train(deterministic=True),
            "not deterministic": self.train,
            "shared prompts": lambda: self.train(shared=True),
            "compiled layers": lambda: self.train(compiled=True),
            "shared, compiled": lambda: self.train(shared=True, compiled=True),
            "no checkpointing, short passes": lambda: self.train(checkpointing=False, tokens=short),
            "push": self.push,
            "sampler float32": lambda: self.draw(torch.float32),
            "sampler bfloat16": lambda: self.draw(torch.bfloat16),
            "packed, flex attention": lambda: self.train(packed=True, attention="flex_attention"),
            "head in chunks of 8 times the size": lambda: self.train(chunk=8),
            "state on disk": self.save,
            "shared, compiled, no checkpointing": lambda: self.train(
                shared=True, compiled=True, checkpointing=False, tokens=short
            ),
        }

    def train(
        self,
        deterministic: bool = False,
        shared: bool = False,
        packed: bool = False,
        compiled: bool = False,
        checkpointing: bool = True,
        tokens: int | None = None,
        attention: str = "sdpa",
        chunk: int = 1,
    ) -> dict[str, Any]:
        """Two gradient steps: the first one's seconds, and all about the second."""
        model = self.model
        model.set_attn_implementation(attention)
        if checkpointing:
            model.gradient_checkpointing_enable()
        else:
            model.gradient_checkpointing_disable()
        gradient = GradientPass(
            algorithm=self.algorithm,
            forward=ForwardPass(
                temperature=1.0, compute_dtype=torch.bfloat16, packed=packed,
                shared=shared, fast_path=False,
            ),
            limits=Limits(
                sequences=None, tokens=tokens or self.size.micro_batch_tokens, packed=packed,
                shared=shared,
            ),
        )  # fmt: skip
        first = StepIndex(batch=0, epoch=0, mini_batch=0, step=0)

        def step() -> float:
            batch = MiniBatch.of(self.rollouts, self.algorithm, first, seed=0, model=model)
            gradient.accumulate(model, batch)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            return float(norm)

        at_once = chunk * logprobs.LOGITS_AT_ONCE
        try:
            with (
                own_layers(model),
                mock.patch.object(logprobs, "LOGITS_AT_ONCE", at_once),
                algorithms(deterministic),
            ):
                if compiled:
                    compile_layers(model)
                norm, warm = self.timed(step)
                if self.device.type == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                _, seconds = self.timed(step)
        finally:
            self.optimizer.zero_grad()
        rows = self.rollouts.prompt_length_B + self.rollouts.length_B
        return {
            "first_s": round(warm, 2),
            "step_s": round(seconds, 3),
            "tokens_per_s": round(int(rows.sum()) / seconds),
            "grad_norm": norm,
            "flops_per_s": round(self.flops() / seconds),
            "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1)
            if self.device.type == "cuda"
            else None,
        }

    def flops(self) -> float:
        """Of one gradient step, forward and backward: 6 for each weight of a matrix and token, 12 L
        D for each token and token it attends to, half of them under the causal mask. The forward
        pass that checkpointing repeats does not count, nor does the head on the prompt."""
        config = self.model.config
        embedding = config.vocab_size * config.hidden_size
        trunk = sum(p.numel() for p in self.model.parameters()) - embedding
        T_B, L_B = self.rollouts.length_B, self.rollouts.prompt_length_B + self.rollouts.length_B
        attention = 12 * config.num_hidden_layers * config.hidden_size * (L_B * L_B).sum() / 2
        return float(L_B.sum() * 6 * trunk + attention + T_B.sum() * 6 * embedding)

    def draw(self, dtype: torch.dtype) -> dict[str, Any]:
        """The native sampler."""
        model = copy.deepcopy(self.model).to(dtype)
        model.set_attn_implementation("sdpa")
        model.gradient_checkpointing_disable()
        sampler = NativeSampler(model, [], min(128, self.size.response), None)
        groups = range(self.size.prompts)
        prompts = [self.rollouts.prompt_BP[g * self.size.draws].tolist() for g in groups]
        draws = [[SampleKey(0, TRAIN, 0, g, k) for k in range(self.size.draws)] for g in groups]
        drawn, seconds = self.timed(lambda: sampler.sample(prompts, draws, 1.0))
        return {"tokens_per_s": round(int(drawn.length_B.sum()) / seconds)}

    def push(self) -> dict[str, Any]:
        """Weights on their way to an engine: copied in float32 and cast on the host by one thread,
        or cast on the device."""
        torch.set_num_threads(1)
        weights = dict(self.model.state_dict())
        copies, to_host = self.timed(lambda: copied_to_host(weights))
        low, cast = self.timed(lambda: {n: w.to(torch.bfloat16) for n, w in copies.items()})
        _, back = self.timed(lambda: [w.to(self.device) for w in low.values()])
        _, better = self.timed(lambda: [w.to(torch.bfloat16).to("cpu") for w in weights.values()])
        return {
            "gb": round(sum(p.nbytes for p in self.model.parameters()) / 1e9, 2),
            "to_host_s": round(to_host, 2),
            "cast_on_host_s": round(cast, 2),
            "to_device_s": round(back, 2),
            "cast_on_device_to_host_s": round(better, 2),
        }

    def save(self) -> dict[str, Any]:
        weights = copied_to_host(dict(self.model.state_dict()))
        size = sum(p.nbytes for p in self.model.parameters()) / 1e9
        with tempfile.TemporaryDirectory() as folder:
            _, seconds = self.timed(
                lambda: stream(Path(folder) / "a.pt", lambda out: torch.save(weights, out))
            )
        return {"gb_per_s": round(size / seconds, 3)}

    def timed(self, work: Callable[[], Any]) -> tuple[Any, float]:
        started = time.perf_counter()
        result = work()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return result, time.perf_counter() - started


def rollouts_of(size: Size) -> Rollouts:
    rng, count = generator(0, TRAIN), size.prompts * size.draws
    lengths = rng.lognormal(0, SPREAD, count).clip(4 / size.response, 4) * size.response
    prompts = [
        rng.integers(size.model["vocab_size"], size=size.prompt) for _ in range(size.prompts)
    ]
    tokens = [rng.integers(size.model["vocab_size"], size=int(n)).tolist() for n in lengths]
    groups = [row // size.draws for row in range(count)]
    return Rollouts.verified(
        Responses.of(tokens, [[-1.0] * len(row) for row in tokens]),
        prompts=[prompts[group].tolist() for group in groups],
        groups=groups,
        results=[VerifierResult(float(row % 2), float(row % 2)) for row in range(count)],
    )


@contextlib.contextmanager
def algorithms(deterministic: bool) -> Iterator[None]:
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def own_layers(model: PreTrainedModel) -> Iterator[None]:
    """Afterwards no layer is compiled."""
    layers = model.model.layers
    before = [{**vars(layer)} for layer in layers]
    try:
        yield
    finally:
        for layer, attributes in zip(layers, before, strict=True):
            vars(layer).clear()
            vars(layer).update(attributes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", type=float, default=420, help="seconds")
    parser.add_argument("--out", type=Path, help="append the lines to this file")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--small", action="store_true", help="a size for any machine")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not options.small:
        parser.error("no CUDA device here; --small tries the script without one")
    begun = time.perf_counter()
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    peak = next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
    about = {
        "date": datetime.date.today().isoformat(), "device": name, "torch": torch.__version__,
        "transformers": transformers.__version__, "size": "small" if options.small else "1.5B",
    }  # fmt: skip

    def write(part: str, **found: Any) -> None:
        line = json.dumps({"part": part, **about, **found})
        print(line, flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(line + "\n")

    bench = Bench(SMALL if options.small else PAPER, device)
    for part, work in bench.parts().items():
        if options.only and part not in options.only:
            continue
        if time.perf_counter() - begun > options.budget:
            write(part, skipped="budget")
            continue
        try:
            found = work()
        except Exception as error:  # the next part may work
            found = {"failed": f"{type(error).__name__}: {error}"[:200]}
        if peak and "flops_per_s" in found:
            found["model_flop_utilisation"] = round(found["flops_per_s"] / peak, 3)
        write(part, **found)
        if device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
