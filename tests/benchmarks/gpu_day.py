"""Every path that no CPU can prove, in one command for the day that a GPU is there.

Run `python tests/benchmarks/gpu_day.py` (`--list` names the checks, `--only NAME …` runs some).
Each check is a run of its own on a model of random weights that is made here, of the shape of
Qwen2.5-0.5B; those that need more GPUs than there are say so. Half of all random responses earn the
reward, so every step has a gradient, and a check fails unless in every step

- the gradient's norm and the change of the weights are above 0,
- the sampler's log-probabilities, at a temperature of 0.8, are the trainer's where the newest
  weights drew. The learning rate is so high that weights one push old are told apart,

and unless the first step of every check but `lora` changes the weights as much as that of `native`,
and has the same gradient's norm where the native sampler draws. So several ranks, packed rows and
compiled layers are compared with one plain rank.

Prints pass or fail beside what was doubtful (docs/scaling.md), with tokens per second (backward
passes included), mismatch and the most memory that a GPU had in use (nvidia-smi, twice a second),
and appends them to `--out`. Exit code 1 if a check failed. Operations per second at the paper's
size are gpu_quarter.py's. With `--cpu` the same commands run on a tiny model with the native
sampler, which tries this script and no GPU. vLLM has to be installed for the others.
"""

import argparse
import datetime
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
TIMEOUT = 900  # seconds of one run
SHAPE = "Qwen/Qwen2.5-0.5B-Instruct"
TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 512}  # fmt: skip
RATE = 0.64  # learning rate times width: a step moves logits by as much at every width
PROBLEMS = (
    16  # so few that prompts return under other weights: a cache kept from the old ones shows
)
BASE = (
    "model=pretrained", "dataset=own", "dataset.verifier=gpu_day.parity",
    "dataset.verifier_workers=1", "dataset.max_prompt_tokens=160", "dataset.max_response_tokens=32",
    "sampler.temperature=0.8", "sampler.eval_temperature=0.8", "steps=4", "batch_size=8",
    "group_size=4", "eval_problems=8", "eval_every=2", "checkpoint_every=2", "kl_every=1",
    "sync=on_policy", "micro_batch_size=null", "micro_batch_tokens=2048",
)  # fmt: skip
LOW = ("model.compute_dtype=bfloat16", "model.gradient_checkpointing=true")
# Drawn beside training, two batches at a time: a batch is drawn while the one before is trained on.
BESIDE = ("sync=interval2", "steps=6", *LOW)
MISMATCH = 0.05  # nats a token, of bfloat16 kernels against bfloat16 kernels
SAME_CHANGE, SAME_GRADIENT = 0.02, 0.05  # relative differences to `native` in bfloat16
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Check:
    """doubt: what is not proved. gpus: that it needs. overrides: of the run. environment: more
    variables. ranks: that train. alike: its first step is that of `native`."""

    doubt: str
    gpus: int
    overrides: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    ranks: int = 1
    alike: bool = True

    @property
    def native(self) -> bool:
        return "sampler=native" in self.overrides


def runner(number: int) -> Check:
    """vLLM has two model runners, each with its own sampler; it chooses one by itself."""
    return Check(
        f"log-probabilities of vLLM's model runner {number}", 1, ("gpus=1x80gb", *LOW),
        environment=(("VLLM_USE_V2_MODEL_RUNNER", str(number - 1)),),
    )  # fmt: skip


CHECKS = {
    "native": Check("the trainer on a GPU at all", 1, ("sampler=native",)),
    "deterministic": Check(
        "a resumed run is the same bits", 1, ("sampler=native", "deterministic=true")
    ),
    "async_states": Check(
        "a state is copied to the host and written while the GPU trains", 1,
        ("sampler=native", *LOW, "async_checkpoints=true", "checkpoint_every=1"),
    ),
    "adamw_8bit": Check(
        "moments in 8 bits", 1, ("sampler=native", *LOW, "optimizer=adamw_8bit")
    ),
    "lora": Check(
        "adapters alone are trained", 1, ("sampler=native", *LOW, "adapter=lora"), alike=False
    ),
    "exported": Check("a run is exported, and scored by itself", 1, ("sampler=native", *LOW)),
    "in_turn": Check(
        "vLLM sleeps and wakes beside the trainer; pushed weights are the trainer's",
        1, ("gpus=1x80gb", *LOW),
    ),
    "runner_1": runner(1),
    "runner_2": runner(2),
    "flash_packed": Check(
        "flash attention takes sequences packed in one row",
        1, ("sampler=native", *LOW, "model.packed=true", "model.attention=flash_attention_2"),
    ),
    "shared_prompts": Check(
        "a mask that lets responses share their prompt", 1,
        ("sampler=native", *LOW, "model.shared_prompts=true"),
    ),
    "compiled": Check(
        "kernels that torch.compile makes of the layers", 1,
        ("sampler=native", *LOW, "model.compile_layers=true"),
    ),
    "beside": Check("vLLM draws on a GPU of its own", 2, ("gpus=2x80gb", *BESIDE)),
    "beside_corrected": Check(
        "the trainer's own log-probabilities on the GPU that draws", 2,
        ("gpus=2x80gb", "sampler.gpu_memory_utilization=0.5", "correction=truncated", *BESIDE),
    ),
    "two_ranks": Check(
        "weights split over NCCL, gathered in bfloat16", 2,
        ("sampler=native", "ranks=2", *LOW), ranks=2,
    ),
    "node": Check(
        "four ranks, each with a GPU that draws for it", 8, ("gpus=8x80gb", *BESIDE), ranks=4
    ),
}  # fmt: skip


def parity(response: str, answer: str) -> float:
    """A reward that half of all random responses earn: the bytes' sum is odd."""
    return float(sum(response.encode()) % 2)


def wrong(rows: list[Row], native: list[Row] | None, same_draws: bool) -> str:
    """What is wrong with the rows of a run, or nothing.

    native: the rows of the check `native`, None where there is nothing to compare. same_draws: both
    train on the same responses first.
    """
    steps = [row for row in rows if "train/loss" in row]
    if not steps:
        return "no gradient step"
    for row in steps:
        for key in ("train/grad_norm", "train/weight_step"):
            if not (0 < row[key] < math.inf):
                return f"step {row['step']}: {key} is {row[key]:g}"
    gaps = {row["step"]: row["train/mismatch"] for row in steps if "train/mismatch" in row}
    if len(gaps) < 2:
        return "fewer than two versions of the weights were compared"
    step, gap = max(gaps.items(), key=lambda item: item[1])
    if not gap < MISMATCH:
        return f"step {step}: mismatch of {gap:.3g} nats a token, at most {MISMATCH}"
    compared = {"train/weight_step": SAME_CHANGE}
    if same_draws:
        compared["train/grad_norm"] = SAME_GRADIENT
    for key, most in compared.items() if native else ():
        first, other = steps[0][key], next(row[key] for row in native or [] if key in row)
        if not abs(first / other - 1) <= most:
            return f"first step: {key} is {first:.4g}, that of native {other:.4g}"
    return ""


def prepare(folder: Path, tiny: bool) -> None:
    """A model with random weights over bytes in `folder`/model, and prompts in `folder`/data. The
    tokenizer knows every entry of the vocabulary, so that any response is a text."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from rec_experiments.plan import budget
    from rec_experiments.policy.models import byte_tokenizer

    shape = {**yaml.safe_load(budget.SHAPES.read_text())[SHAPE], **(TINY if tiny else {})}
    tokenizer, model = byte_tokenizer(), folder / "model"
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    torch.manual_seed(0)
    config = AutoConfig.for_model(**{**shape, **ends})
    AutoModelForCausalLM.from_config(config).save_pretrained(model)
    tokenizer.save_pretrained(model)
    saved = json.loads((model / "tokenizer.json").read_text())
    saved["model"]["vocab"] |= {f"t{n}": n for n in range(len(tokenizer), shape["vocab_size"])}
    (model / "tokenizer.json").write_text(json.dumps(saved))
    (folder / "data").mkdir()
    rows = [{"question": f"{n:02} " * (4 + 3 * n), "answer": ""} for n in range(PROBLEMS)]
    for name in ("train", "test"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "data" / f"{name}.jsonl").write_text(lines)


def overrides(check: Check, place: Path, run_dir: Path, tiny: bool) -> list[str]:
    """Of a run on what `prepare` wrote to `place`."""
    width = TINY["hidden_size"] if tiny else 896
    return [
        *BASE, f"optimizer.learning_rate={RATE / width:g}", *check.overrides,
        f"model.path={place}/model", f"dataset.path={place}/data", f"run_dir={run_dir}",
        *(["device=cpu"] if tiny else []),
    ]  # fmt: skip


def command(check: Check, words: list[str]) -> list[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={check.ranks}"]
    start = torchrun if check.ranks > 1 else []
    return [sys.executable, *start, "-m", "rec_experiments", *words]


def run(check: Check, words: list[str]) -> str:
    """Why a command failed, or nothing."""
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **dict(check.environment), "PYTHONPATH": path}
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=TIMEOUT, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"no end within {TIMEOUT} s"
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return "" if done.returncode == 0 else (said[-1] if said else f"exit code {done.returncode}")


def rows_of(folder: Path) -> list[Row]:
    """Of a run, as far as it came."""
    file = folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def resumed_alike(check: Check, words: list[str], folder: Path) -> str:
    """The run, begun again from the middle, against the one that was not interrupted."""
    whole = rows_of(folder)
    (folder / "status.json").unlink()
    shutil.rmtree(max((folder / "checkpoints").iterdir()))
    if why := run(check, command(check, words)):
        return f"resuming: {why}"

    def plain(row: Row) -> Row:
        return {k: v for k, v in row.items() if "time/" not in k and "per_second" not in k}

    again = rows_of(folder)
    return "" if [*map(plain, whole)] == [*map(plain, again)] else "other numbers after a resume"


def judge(name: str, place: Path, tiny: bool) -> str:
    """Run a check in `place`/NAME; why it failed, or nothing. `native` has to be run before."""
    check, folder = CHECKS[name], place / name
    words = overrides(check, place, folder, tiny)
    if why := run(check, command(check, words)):
        return why
    native = rows_of(place / "native") if check.alike and name != "native" else None
    if native == []:
        return "nothing to compare with, as native did not run"
    if why := wrong(rows_of(folder), native, check.native):
        return why
    if name in ("exported", "in_turn", "beside"):  # by what draws in each
        return scored_alone(check, folder)
    return resumed_alike(check, words, folder) if name == "deterministic" else ""


def tidy(folder: Path) -> None:
    """Remove what only the judgement needed: states and models would take 16 GB for each check."""
    for each in (folder / "checkpoints", exported(folder)):
        shutil.rmtree(each, ignore_errors=True)


def exported(folder: Path) -> Path:
    """Where the model of a run is exported to."""
    return folder.with_name(f"{folder.name}_model")


def scored_alone(check: Check, folder: Path) -> str:
    """Why the run cannot be exported, or scored without training."""
    words = [sys.executable, "-m", "rec_experiments"]
    why = run(check, [*words, "export", str(folder), str(exported(folder))])
    return why or run(check, [*words, "evaluate", str(folder)])


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
    """Medians over the steps after the first, which pays for what starts."""
    keys = ("tokens/train_per_second", "tokens/rollout_per_second", "train/mismatch")
    values = {key: [row[key] for row in rows_of(folder)[2:] if key in row] for key in keys}
    return {key: statistics.median(found) for key, found in values.items() if found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=CHECKS, help="these, after native")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--cpu", action="store_true", help="try this script without a GPU")
    parser.add_argument("--out", type=Path, help="append the results to this file of JSON lines")
    options = parser.parse_args()
    if options.list:
        print(*(f"{name:16} {c.gpus} GPU  {c.doubt}" for name, c in CHECKS.items()), sep="\n")
        return
    import torch

    there = torch.cuda.device_count()
    where = "CPU" if options.cpu else (torch.cuda.get_device_name() if there else "")
    if not where:
        parser.error("no CUDA device here; --cpu tries this script without one")
    print(f"{datetime.date.today()}, {there} x {where}, torch {torch.__version__}")
    failed = False
    with tempfile.TemporaryDirectory() as name_of_place:
        place = Path(name_of_place)
        prepare(place, tiny=options.cpu)
        for name, check in CHECKS.items():
            if options.only and name not in (*options.only, "native"):
                continue
            at_hand = 2 if options.cpu else there  # as many ranks as the CPU tries
            needs_gpu = not check.native or "flash" in name
            if check.gpus > at_hand or (options.cpu and needs_gpu):
                print(f"not run  {name:16} {check.doubt} (needs {check.gpus} GPU)")
                continue
            started = time.perf_counter()
            with Memory() as memory:
                why = judge(name, place, options.cpu)
            seconds, found = time.perf_counter() - started, numbers(place / name)
            tidy(place / name)
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
