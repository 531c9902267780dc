"""The plan's peak of memory against the measured one, on a CPU.

Run `python benchmarks/plan_reality.py [--large]`. For models of random weights, with and without
packing, checkpointing of activations and a reference, a fresh process goes through the phases of a
run: start, hold, gradient, optimizer step, save, resume. Printed are the most memory that the plan
counts (weights and what is computed, without values) and the growth of the process's resident
memory, which holds what Python and torch allocate besides. glibc is told to give back what is freed
(MALLOC_MMAP_THRESHOLD_), as the plan assumes.
"""

import argparse
import datetime
import itertools
import os
import resource
import subprocess
import sys
from pathlib import Path

import torch

from rec_experiments.distributed import World
from rec_experiments.plan import memory, passes
from rec_experiments.plan.meter import Meter
from rec_experiments.runs.api import Experiment

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
    f"dataset.max_prompt_tokens={PROMPT_TOKENS}", "micro_batch_size=null",
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


def measure(shape: dict, overrides: list[str]) -> int:
    """Bytes that the process grows by, at most, while it goes through the phases."""
    torch.set_num_threads(1)
    experiment = Experiment.compose(*overrides).settings
    warm = {**shape, "num_hidden_layers": 1, "hidden_size": 24, "intermediate_size": 8}
    batch = passes.batch_of(experiment, passes.full_pass(experiment, PROMPT_TOKENS))
    small = memory.model_of(experiment, {**warm, "num_attention_heads": 2,
                                         "num_key_value_heads": 2, "vocab_size": 3000})  # fmt: skip
    memory.Phases(experiment, World(), Meter()).run(small, batch)  # libraries load what they need
    del small
    before = resident()
    model = memory.model_of(experiment, shape)
    memory.Phases(experiment, World(), Meter()).run(model, batch)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before


def predict(shape: dict, overrides: list[str]) -> int:
    experiment = Experiment.compose(*overrides).settings
    found = memory.training_memory(experiment, shape, PROMPT_TOKENS, host=memory.DEVICE)
    return int(max(use.device for use in found.values()))


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
