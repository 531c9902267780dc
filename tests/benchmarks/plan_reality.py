"""What the plan is held to: memory and time of gradient steps, of a push and of a state, and what a
run of one rank or two takes, on a CPU.

Run `python tests/benchmarks/plan_reality.py [--large] [--out FILE]`. For models of random weights,
with and without packing, activation checkpointing and a reference, a fresh process takes gradient
steps. A line has the growth of the process's resident memory, which also holds what Python and
torch allocate besides, and the processor seconds of the second step. MALLOC_MMAP_THRESHOLD_ makes
glibc return freed memory, as the plan assumes. tests/plan/test_reality.py compares the plan with
the lines in docs/results/plan.jsonl.
"""

import argparse
import copy
import datetime
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig

from rec_experiments.common.distributed import copied_to_host
from rec_experiments.plan import memory
from rec_experiments.policy.logprobs import ForwardPass, Wanted
from rec_experiments.policy.lora import trained
from rec_experiments.policy.models import byte_tokenizer
from rec_experiments.runs.api import Experiment
from rec_experiments.runs.checkpoints import stream
from rec_experiments.training.gradient import begin_gradient

# hidden size, intermediate size, layers, heads, vocabulary
SHAPES = {
    name: LlamaConfig(
        hidden_size=wide, intermediate_size=inner, num_hidden_layers=deep,
        num_attention_heads=heads, vocab_size=words, max_position_embeddings=4096,
    )
    for name, wide, inner, deep, heads, words in [
        ("20M", 384, 1024, 8, 6, 8192),
        ("100M", 768, 2048, 12, 12, 16384),
        ("500M", 1280, 3584, 22, 20, 16384),
        ("tiny", 24, 8, 1, 2, 3000),
    ]
}  # fmt: skip
PROMPT_TOKENS = 64
RUN = (
    "model=pretrained", "model.path=none", "dataset=gsm8k", "dataset.max_response_tokens=192",
    f"dataset.max_prompt_tokens={PROMPT_TOKENS}", "micro_batch_size=null", "device=cpu",
)  # fmt: skip
TOKENS = {"20M": 2048, "100M": 2048, "500M": 512}  # of a pass
KEYS = ("model.packed", "model.gradient_checkpointing", "kl_every")
VARIANTS = list(itertools.product(("false", "true"), ("false", "true"), ("0", "1")))
GB = 1e9
MMAP = str(1 << 16)  # bytes from which a block is the system's


def resident() -> int:
    """Bytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def overrides(name: str, variant: tuple[str, ...]) -> list[str]:
    chosen = [f"{key}={value}" for key, value in zip(KEYS, variant, strict=True)]
    return [*RUN, f"micro_batch_tokens={TOKENS[name]}", *chosen]


def take_steps(experiment, model) -> float:
    """Two gradient steps of full micro-batches, with a reference where KL is measured. Returns the
    processor seconds of the second one."""
    forward = ForwardPass(
        temperature=1.0, compute_dtype=torch.float32, packed=experiment.model.packed,
        fast_path=False,
    )  # fmt: skip
    rows = memory.largest_pass(experiment, PROMPT_TOKENS)
    others = {}
    if experiment.kl_every:
        others["reference"] = copy.deepcopy(model).eval().requires_grad_(False)
    held = copied_to_host(model.state_dict())
    optimizer = experiment.optimizer.build(model)
    for step in range(2):
        started = time.process_time()
        begin_gradient(model)
        scores = forward(model, rows, Wanted(others=others, kl=bool(others)), chunked=True)
        scores.logp_BT.mean().backward()
        del scores
        before = copied_to_host(trained(model)) if others else None
        experiment.optimizer.step(optimizer, model, step)
        del before
    del held
    return time.process_time() - started


def gradient_step(name: str, *variant: str) -> dict[str, float]:
    """The most bytes by which the process grows in two gradient steps."""
    experiment = Experiment.compose(*overrides(name, variant)).settings
    tiny = memory.build(experiment, SHAPES["tiny"])
    take_steps(experiment, tiny)  # libraries load what they need
    before = resident()
    seconds = take_steps(experiment, memory.build(experiment, SHAPES[name]))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"bytes": peak - before, "seconds": round(seconds, 3)}


def write_model(folder: Path, experiment, config) -> None:
    """A model of random weights, and a tokenizer of bytes."""
    model = memory.build(experiment, config)
    model.config.eos_token_id, model.config.pad_token_id = 1, 0
    model.generation_config.eos_token_id = 1
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)


def run(name: str, ranks: str) -> dict[str, float]:
    """One step in bfloat16 that measures KL: the bytes by which the larger process exceeds one with
    a tiny model, and those of the checkpoint."""
    peaks, saved = [], 0
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", ranks] if ranks != "1" else []
    for config in (SHAPES["tiny"], SHAPES[name]):
        with tempfile.TemporaryDirectory() as folder:
            write_model(Path(folder), Experiment.compose(*RUN).settings, config)
            words = (
                "model=pretrained", f"model.path={folder}", "model.compute_dtype=bfloat16",
                f"ranks={ranks}", f"output_dir={folder}/run", "device=cpu", "dataset=arithmetic",
                "dataset.max_response_tokens=8", "sync.interval=1", "steps=1", "kl_every=1",
                "batch_size=2", "group_size=2", "eval_problems=2", "micro_batch_tokens=64",
                "micro_batch_size=null",
            )  # fmt: skip
            subprocess.run(
                [sys.executable, *torchrun, "-m", "rec_experiments", *words],
                stdout=subprocess.DEVNULL, check=True,
            )  # fmt: skip
            saved = sum(file.stat().st_size for file in Path(folder).rglob("rank_*.pt"))
        peaks.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
    return {"bytes": peaks[1] - peaks[0], "checkpoint": saved}


def push(name: str) -> dict[str, float]:
    """Weights of float32 as bfloat16 files in memory, and read again by a server."""
    weights = memory.build(Experiment.compose(*RUN).settings, SHAPES[name]).state_dict()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        started = time.process_time()
        cast = {key: weight.to(torch.bfloat16) for key, weight in weights.items()}
        save_file(cast, f"{folder}/weights")
        read = [weight.clone() for weight in load_file(f"{folder}/weights").values()]
        seconds = time.process_time() - started
    pushed = sum(weight.nbytes for weight in read)
    return {"bytes": pushed, "seconds": round(seconds, 3), "gb_per_second": rate(pushed, seconds)}


def save(name: str) -> dict[str, float]:
    """A checkpoint's file, with its checksums."""
    weights = memory.build(Experiment.compose(*RUN).settings, SHAPES[name]).state_dict()
    size = sum(weight.nbytes for weight in weights.values())
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        stream(Path(folder) / "state", lambda out: torch.save(weights, out))
        seconds = time.process_time() - started
    return {"bytes": size, "seconds": round(seconds, 3), "gb_per_second": rate(size, seconds)}


def rate(size: int, seconds: float) -> float:
    return round(size / GB / seconds, 2)


PARTS = {"step": gradient_step, "push": push, "save": save, "run": run}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="500M too: 14 GB, half an hour")
    parser.add_argument("--only", choices=TOKENS)
    parser.add_argument("--out", type=Path, help="append the lines to this file")
    parser.add_argument("--part", nargs="+", metavar=("PART", "WORD"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.part:
        part, *words = options.part
        print(json.dumps(PARTS[part](*words)))
        return
    names = [options.only] if options.only else list(TOKENS)[: 3 if options.large else 2]
    work = [("step", name, *variant) for name in names for variant in VARIANTS]
    work += [(part, names[-1]) for part in ("push", "save")]
    work += [("run", names[-1], ranks) for ranks in ("1", "2")]
    for words in work:
        done = subprocess.run(
            [sys.executable, __file__, "--part", *words],
            env={**os.environ, "MALLOC_MMAP_THRESHOLD_": MMAP},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            sys.exit(done.stderr or f"{words}: ended with code {done.returncode}")
        about = {"date": f"{datetime.date.today()}", "device": "CPU", "torch": torch.__version__}
        line = json.dumps({"part": words, **about, **json.loads(done.stdout.splitlines()[-1])})
        print(line, flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
