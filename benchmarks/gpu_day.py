"""Every path that no CPU can prove, in one command for the day that a GPU is there.

Run `python benchmarks/gpu_day.py` (`--list` names the checks, `--only NAME` runs one). Each check
is a run of its own on a model of random weights that is made here, of the shape of Qwen2.5-0.5B;
those that need more GPUs than there are say so. Prints pass or fail beside what was doubtful
(docs/scaling.md), with tokens per second, mismatch and the most memory that a GPU had in use
(nvidia-smi, twice a second), and appends them to `--out`. Exit code 1 if a check failed. Operations
per second at the paper's size are paper_setting.py's. With `--cpu` the same commands run on a tiny
model with the native sampler, which tries this script and no GPU. vLLM has to be installed for the
others.
"""

import argparse
import datetime
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import AutoConfig, AutoModelForCausalLM

from rec_experiments.plan import budget
from rec_experiments.policy.models import byte_tokenizer

TIMEOUT = 900  # seconds of one run
SHAPE = "Qwen/Qwen2.5-0.5B-Instruct"
TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 512}  # fmt: skip
BASE = (
    "model=pretrained", "dataset=reduction", "steps=4", "batch_size=8", "group_size=4",
    "eval_problems=16", "eval_every=2", "checkpoint_every=2", "kl_every=2", "sync=interval20",
    "micro_batch_size=null", "micro_batch_tokens=2048",
)  # fmt: skip
LOW = ("model.compute_dtype=bfloat16", "model.gradient_checkpointing=true")
MISMATCH = 0.05  # nats a token, of bfloat16 kernels against bfloat16 kernels
Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Check:
    """doubt: what is not proved. gpus: that it needs. overrides: of the run. holds: of its rows."""

    doubt: str
    gpus: int
    overrides: tuple[str, ...]
    holds: Callable[[Rows], bool]


def finite(rows: Rows) -> bool:
    return all(math.isfinite(row["train/loss"]) for row in rows[1:])


def drawn_alike(rows: Rows) -> bool:
    """The sampler's probabilities are the trainer's, but for rounding."""
    found = [row["train/mismatch"] for row in rows if "train/mismatch" in row]
    return finite(rows) and bool(found) and max(found) < MISMATCH


CHECKS = {
    "native": Check("the trainer on a GPU at all", 1, ("sampler=native",), finite),
    "deterministic": Check(
        "a resumed run is the same bits", 1, ("sampler=native", "deterministic=true"), finite
    ),
    "async_states": Check(
        "a state is copied to the host and written while the GPU trains", 1,
        ("sampler=native", *LOW, "async_checkpoints=true", "checkpoint_every=1"), finite,
    ),
    "exported": Check(
        "a run is exported, and scored by itself", 1, ("sampler=native", *LOW), finite
    ),
    "in_turn": Check(
        "vLLM sleeps and wakes beside the trainer; pushed weights are the trainer's",
        1, ("gpus=1x80gb", *LOW), drawn_alike,
    ),
    "flash_packed": Check(
        "flash attention takes sequences packed in one row",
        1, ("sampler=native", *LOW, "model.packed=true", "model.attention=flash_attention_2"),
        finite,
    ),
    "shared_prompts": Check(
        "a mask that lets responses share their prompt", 1,
        ("sampler=native", *LOW, "model.shared_prompts=true"), finite,
    ),
    "compiled": Check(
        "kernels that torch.compile makes of the layers", 1,
        ("sampler=native", *LOW, "model.compile_layers=true"), finite,
    ),
    "reference_waits": Check(
        "the reference comes from the host, in KL steps", 1,
        ("sampler=native", *LOW, "kl_every=1"), finite,
    ),
    "beside": Check(
        "vLLM draws on a GPU of its own", 2, ("gpus=2x80gb", *LOW), drawn_alike
    ),
    "beside_corrected": Check(
        "the trainer's own log-probabilities on the GPU that draws", 2,
        ("gpus=2x80gb", "sampler.gpu_memory_utilization=0.5", "correction=truncated", *LOW),
        drawn_alike,
    ),
    "tensor_parallel": Check(
        "the push to tensor-parallel workers", 2,
        ("gpus=1x80gb", "sampler.sleep=false", "sampler.tensor_parallel_size=2", *LOW),
        drawn_alike,
    ),
    "two_ranks": Check(
        "weights split over NCCL, gathered in bfloat16", 2,
        ("sampler=native", "ranks=2", *LOW), finite,
    ),
    "node": Check(
        "four ranks, each with a GPU that draws for it", 8, ("gpus=8x80gb", *LOW), drawn_alike
    ),
}  # fmt: skip


def random_model(folder: Path, tiny: bool) -> None:
    """Weights without a meaning, over bytes, where `save_pretrained` puts them."""
    shape = yaml.safe_load(budget.SHAPES.read_text())[SHAPE]
    tokenizer = byte_tokenizer()
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    config = AutoConfig.for_model(**{**shape, **(TINY if tiny else {}), **ends})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def command(check: Check, model: Path, folder: Path, *more: str) -> list[str]:
    overrides = [*BASE, *check.overrides, f"model.path={model}", f"run_dir={folder}", *more]
    ranks = next((o.partition("=")[2] for o in overrides if o.startswith("ranks=")), "1")
    if "gpus=8x80gb" in overrides:
        ranks = "4"
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    module = ["-m", "rec_experiments", *overrides]
    return [sys.executable, *(torchrun if ranks != "1" else []), *module]


def run(words: list[str]) -> str:
    """Why it failed, or nothing."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=TIMEOUT, env=os.environ
        )
    except subprocess.TimeoutExpired:
        return f"no end within {TIMEOUT} s"
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return "" if done.returncode == 0 else (said[-1] if said else f"exit code {done.returncode}")


def rows_of(folder: Path) -> Rows:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def resumed_alike(check: Check, model: Path, folder: Path, more: tuple[str, ...]) -> str:
    """The run, begun again from the middle, against the one that was not interrupted."""
    whole = rows_of(folder)
    for name in ("status.json", "checkpoints/step_00000004"):
        subprocess.run(["rm", "-r", str(folder / name)], check=True)
    if why := run(command(check, model, folder, *more)):
        return f"resuming: {why}"

    def plain(row: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in row.items() if "time/" not in k and "per_second" not in k}

    again = rows_of(folder)
    return "" if [*map(plain, whole)] == [*map(plain, again)] else "other numbers after a resume"


def judge(name: str, check: Check, model: Path, folder: Path, more: tuple[str, ...]) -> str:
    """Why the check failed, or nothing."""
    if why := run(command(check, model, folder, *more)):
        return why
    if not check.holds(rows_of(folder)):
        return "numbers out of range: see its metrics.jsonl"
    if name in ("exported", "in_turn", "beside"):  # by what draws in each
        return scored_alone(folder)
    return resumed_alike(check, model, folder, more) if name == "deterministic" else ""


def scored_alone(folder: Path) -> str:
    """Why the run cannot be exported, or scored without training."""
    words = [sys.executable, "-m", "rec_experiments"]
    out = str(folder.with_name(f"{folder.name}_model"))
    why = run([*words, "export", str(folder), out])
    return why or run([*words, "evaluate", str(folder)])


class Memory:
    """The most memory in use on any GPU within, in GB; nothing where nvidia-smi is not."""

    def __enter__(self) -> "Memory":
        self.most: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        if shutil.which("nvidia-smi"):
            self._thread.start()
        return self

    def _look(self) -> None:
        words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not self._over.wait(0.5):
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            mebibytes = [float(line) for line in done.stdout.split() if line.isdecimal()]
            self.most = max([self.most or 0.0, *(n * 2**20 / 1e9 for n in mebibytes)])

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._thread.ident:
            self._thread.join()


def numbers(folder: Path) -> dict[str, float]:
    """Of the last steps, as far as the run came."""
    if not (folder / "metrics.jsonl").is_file():
        return {}
    found: dict[str, float] = {}
    for row in rows_of(folder):
        for key in ("tokens/train_per_second", "tokens/rollout_per_second", "train/mismatch"):
            if key in row:
                found[key] = row[key]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=CHECKS)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="try this script without a GPU")
    parser.add_argument("--out", type=Path, help="append the results to this file of JSON lines")
    options = parser.parse_args()
    if options.list:
        print(*(f"{name:16} {c.gpus} GPU  {c.doubt}" for name, c in CHECKS.items()), sep="\n")
        return
    there = torch.cuda.device_count()
    where = "CPU" if options.cpu else (torch.cuda.get_device_name() if there else "")
    if not where:
        parser.error("no CUDA device here; --cpu tries this script without one")
    print(f"{datetime.date.today()}, {there} x {where}, torch {torch.__version__}")
    failed = False
    with tempfile.TemporaryDirectory() as place:
        model = Path(place, "model")
        random_model(model, tiny=options.cpu)
        for name, check in CHECKS.items():
            if options.only not in (None, name):
                continue
            on_cpu = ("device=cpu",) if options.cpu else ()
            needs_gpu = "sampler=native" not in check.overrides or "flash" in name
            at_hand = 2 if options.cpu else there  # as many ranks as the CPU tries
            if check.gpus > at_hand or (options.cpu and needs_gpu):
                print(f"not run  {name:16} {check.doubt} (needs {check.gpus} GPU)")
                continue
            started, folder = time.perf_counter(), Path(place, name)
            with Memory() as memory:
                why = judge(name, check, model, folder, on_cpu)
            seconds, found = time.perf_counter() - started, numbers(folder)
            if memory.most is not None:
                found["memory_gb"] = memory.most
            failed |= bool(why)
            shown = ", ".join(f"{key} {value:.4g}" for key, value in found.items())
            print(f"{'FAIL' if why else 'pass':8} {name:16} {check.doubt}: {why or shown}")
            if options.out:
                line = {
                    "date": str(datetime.date.today()), "device": where, "check": name,
                    "failed": why, "seconds": round(seconds, 1), **found,
                }  # fmt: skip
                with options.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    sys.exit(failed)


if __name__ == "__main__":
    main()
