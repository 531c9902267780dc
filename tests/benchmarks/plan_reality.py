"""The plan's peak of memory against the measured one, on a CPU.

Run `python tests/benchmarks/plan_reality.py [--large]`. For models of random weights, with and
without packing, activation checkpointing and a reference, a fresh process takes gradient steps.
Printed are the peak that the plan predicts and the growth of the process's resident memory, which
also holds what Python and torch allocate besides. MALLOC_MMAP_THRESHOLD_ makes glibc return freed
memory, as the plan assumes.
"""

import argparse
import copy
import datetime
import itertools
import os
import resource
import subprocess
import sys
from pathlib import Path

import torch

from rec_experiments.common.distributed import copied_to_host
from rec_experiments.plan import memory, passes
from rec_experiments.policy.logprobs import ForwardPass
from rec_experiments.policy.lora import trained
from rec_experiments.runs.api import Experiment
from rec_experiments.training.gradient import begin_gradient

LLAMA = {"model_type": "llama", "max_position_embeddings": 4096, "tie_word_embeddings": False}
SHAPES = {
    "20M": LLAMA | {
        "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 8,
        "num_attention_heads": 6, "num_key_value_heads": 6, "vocab_size": 8192,
    },
    "100M": LLAMA | {
        "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12,
        "num_attention_heads": 12, "num_key_value_heads": 12, "vocab_size": 16384,
    },
    "500M": LLAMA | {
        "hidden_size": 1280, "intermediate_size": 3584, "num_hidden_layers": 22,
        "num_attention_heads": 20, "num_key_value_heads": 20, "vocab_size": 16384,
    },
}  # fmt: skip
PROMPT_TOKENS = 64
RUN = (
    "model=pretrained", "model.path=none", "dataset=gsm8k", "dataset.max_response_tokens=192",
    f"dataset.max_prompt_tokens={PROMPT_TOKENS}", "micro_batch_size=null", "device=cpu",
)  # fmt: skip
TOKENS = {"20M": 2048, "100M": 2048, "500M": 512}  # of a pass
KEYS = ("model.packed", "model.gradient_checkpointing", "kl_every")
VARIANTS = list(itertools.product(("false", "true"), ("false", "true"), ("0", "1")))
WHAT = ("predicted", "measured")
MMAP = str(1 << 16)  # bytes from which a block is the system's


def resident() -> int:
    """Bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def take_steps(experiment, model) -> None:
    """Two gradient steps of full micro-batches, with a reference where KL is measured."""
    forward = ForwardPass(
        pad_id=0, temperature=1.0, compute_dtype=torch.float32, packed=experiment.model.packed,
        fast_path=False,
    )  # fmt: skip
    rows = passes.largest_pass(experiment, PROMPT_TOKENS)
    others = {}
    if experiment.kl_every:
        others["reference"] = copy.deepcopy(model).eval().requires_grad_(False)
    held = copied_to_host(model.state_dict())
    optimizer = experiment.optimizer.build(model)
    for step in range(2):
        begin_gradient(model)
        scores = forward(model, rows, others=others, kl=bool(others), chunked=True)
        scores.logp_BT.mean().backward()
        del scores
        before = copied_to_host(trained(model)) if others else None
        experiment.optimizer.step(optimizer, model, step)
        del before
    del held


def measure(shape: dict, overrides: list[str]) -> int:
    """Bytes that the process grows by, at most, in two gradient steps."""
    torch.set_num_threads(1)
    experiment = Experiment.compose(*overrides).settings
    warm = {**shape, "num_hidden_layers": 1, "hidden_size": 24, "intermediate_size": 8,
            "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 3000}  # fmt: skip
    take_steps(experiment, memory.build(experiment, warm))  # libraries load what they need
    before = resident()
    take_steps(experiment, memory.build(experiment, shape))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def predict(shape: dict, overrides: list[str]) -> int:
    experiment = Experiment.compose(*overrides).settings
    phases = memory.training_memory(experiment, shape, PROMPT_TOKENS)
    return int(max(phases[name].device + phases[name].host for name in ("train", "step")))


def found(what: str, *words: str) -> int:
    """Bytes, from a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--of", what, *words],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": MMAP},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stderr or f"{what}: ended with code {done.returncode}")
    return int(done.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="500M too: 14 GB, half an hour")
    parser.add_argument("--only", choices=SHAPES)
    parser.add_argument("--of", nargs="+", metavar=("WHAT", "OVERRIDE"))
    options = parser.parse_args()
    if options.of:
        what, name, *overrides = options.of
        print({"predicted": predict, "measured": measure}[what](SHAPES[name], overrides))
        return
    print(f"{datetime.date.today()}, CPU, torch {torch.__version__}")
    print("model  packed  checkpointing  reference  predicted MB  measured MB  predicted/measured")
    names = [options.only] if options.only else list(SHAPES)[: 3 if options.large else 2]
    for name in names:
        for variant in VARIANTS:
            chosen = [f"{key}={value}" for key, value in zip(KEYS, variant, strict=True)]
            overrides = [*RUN, f"micro_batch_tokens={TOKENS[name]}", *chosen]
            predicted, measured = (found(what, name, *overrides) for what in WHAT)
            packed, checkpointing, kl = variant
            reference = "true" if kl != "0" else "false"
            print(
                f"{name:5}  {packed:6}  {checkpointing:13}  {reference:9}  "
                f"{predicted / 1e6:12.0f}  {measured / 1e6:11.0f}  {predicted / measured:18.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
