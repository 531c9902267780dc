"""This project beside its peers on the same work: `make bench-peers`.

The same model, prompts, rewards, batch, K, lengths, threads and allocator for TRL's
GRPOTrainer, a plain loop over the transformers model, vLLM's build for CPUs (sampling alone) and
this project. Each is a process of its own, and they take turns: every round is made by all, one
after the other, before the next begins. What is compared are processor seconds, since a machine
with other work gives each of them the wall time that is left over; of one thread on an idle core
the two are the same.

That the work is the same is checked: all are given the first batch that this project drew, and
their gradients of it must agree to rounding; afterwards each draws for itself, and the number of
tokens must agree to a few per cent.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas

FOLDER = Path(__file__).parent
ALLOCATOR = ("MALLOC_", "LD_PRELOAD", "PYTHONMALLOC")  # variables that start so are taken away
LARGEST_DIFFERENCE = 1e-4  # of two gradients, as a share of their length
LARGEST_TOKENS = 0.05  # that the tokens of two contestants may differ by


@dataclass(frozen=True, kw_only=True)
class Workload:
    """overrides: of this project's configuration. hashed: rewards are a hash of the response.
    steps: of a round. contestants: by label, what to start."""

    title: str
    overrides: tuple[str, ...]
    hashed: bool
    steps: int
    contestants: dict[str, tuple[str, ...]]


PRETRAINED = (
    "this_project.py", "pretrained", "model=pretrained", "model.path={folder}/model",
)  # fmt: skip
TRAINERS = {
    "this project, model=pretrained": PRETRAINED,
    "plain loop": ("plain_loop.py", "plain"),
    "TRL, best": ("trl_trainer.py", "trl_best", "one_pass"),
    "TRL, default": ("trl_trainer.py", "trl_default", "default"),
}
SAMPLERS = {
    "this project's sampler": ("drawing.py", "native"),
    "transformers' generate": ("drawing.py", "generate"),
    "vLLM on CPU": ("drawing.py", "vllm"),
}
DIFFERENT = (
    "batch_size=32", "group_size=8", "sync=on_policy", "dataset.max_response_tokens=24",
    "model.warm_start.steps=0", "algo=rec_oneside_is",
)  # fmt: skip
MINIATURE = ("algo=rec_oneside_is",)
SMOLLM2 = (
    "setting=lm/gsm8k", "algo=rec_oneside_is", "sync=on_policy", "micro_batch_size=16",
    "optimizer.learning_rate=1.0e-6", "optimizer.warmup_steps=0",
)  # fmt: skip
HEADS = "model.heads=2"  # of 32; vLLM's kernels for CPUs know none of 16
WORKLOADS = {
    "different": Workload(
        title="every response different, every group live, on-policy: 32 prompts x 8 responses, "
        "at most 24 tokens, untrained model",
        overrides=DIFFERENT,
        hashed=True,
        steps=4,
        contestants=TRAINERS,
    ),
    "miniature": Workload(
        title="the miniature as it is: 16 prompts x 8 responses, interval 20, warm-started model",
        overrides=MINIATURE,
        hashed=False,
        steps=20,
        contestants={"this project": ("this_project.py", "tiny")} | TRAINERS,
    ),
    "smollm2": Workload(
        title="SmolLM2 of 135M parameters on word problems, on-policy: 8 prompts x 8 responses, at "
        "most 48 tokens, passes of 16 responses, float32",
        overrides=SMOLLM2,
        hashed=False,
        steps=1,
        contestants={
            "this project": (
                "this_project.py",
                "smollm2",
                "model.path={folder}/model",
                "model.warm_start.steps=0",
            ),
            "plain loop": ("plain_loop.py", "plain", "16"),
            "TRL, best": ("trl_trainer.py", "trl_best", "passes_of_16"),
            "TRL, default": ("trl_trainer.py", "trl_default", "default"),
        },
    ),
    "sampling_smollm2": Workload(
        title="sampling alone from SmolLM2 on word problems, 64 responses at a time",
        overrides=SMOLLM2,
        hashed=False,
        steps=1,
        contestants=SAMPLERS,
    ),
    "sampling_miniature": Workload(
        title="sampling alone on the miniature, 128 responses at a time, model with 2 heads of 32",
        overrides=(*MINIATURE, HEADS),
        hashed=False,
        steps=8,
        contestants=SAMPLERS,
    ),
}


@dataclass(kw_only=True)
class Contestant:
    """A process that makes steps when it is told to, and what its rounds took."""

    label: str
    process: subprocess.Popen
    log: Path
    start_cpu: float = 0.0
    rounds: list[dict[str, Any]] = field(default_factory=list)
    failed: str = ""

    def answer(self) -> dict[str, Any]:
        """What it says next; {} once it has failed."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            last = self.log.read_text(errors="replace").strip().rpartition("\n")[2]
            self.failed = last or f"exit code {self.process.returncode}"
            return {}
        return json.loads(line)

    def make(self, steps: int) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def environment(threads: int) -> dict[str, str]:
    """The same for all: no setting of an allocator, no GPU, no network."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ALLOCATOR)}
    fixed = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
    return {**kept, **fixed, **counts}


def start(
    label: str, command: tuple[str, ...], folder: Path, python: str, threads: int, first: bool
) -> Contestant:
    script, name, *rest = command
    if script == "this_project.py":
        rest = [each.format(folder=folder) for each in rest]
        rest = ["first" if first else "given", f"threads={threads}", *rest]
    log = folder / f"{name}.log"
    with open(log, "wb") as stderr:
        process = subprocess.Popen(
            [python, str(FOLDER / "contestants" / script), str(folder), name, *rest],
            env=environment(threads), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=stderr, text=True, cwd=FOLDER.parent,
        )  # fmt: skip
    return Contestant(label=label, process=process, log=log)


def measure(
    workload: Workload, folder: Path, rounds: int, threads: int, vllm: Path
) -> list[Contestant]:
    """All contestants, having made their rounds in turns. The first round is not counted."""
    prepare = [sys.executable, str(FOLDER / "contestants/this_project.py"), "prepare", str(folder)]
    subprocess.run(
        [*prepare, str(int(workload.hashed)), *workload.overrides, f"threads={threads}"],
        env=environment(threads), check=True, stdout=subprocess.DEVNULL, cwd=FOLDER.parent,
    )  # fmt: skip
    found = []
    for label, command in workload.contestants.items():
        python = str(vllm) if command[1] == "vllm" else sys.executable
        if not Path(python).exists():
            print(f"  {label}: left out, there is no {python}; make test-vllm installs it")
            continue
        contestant = start(label, command, folder, python, threads, first=not found)
        found.append(contestant)
        contestant.start_cpu = contestant.answer().get("cpu", 0.0)
        if not contestant.failed:
            contestant.make(workload.steps)
        print(f"  {label}: {contestant.failed or 'ready'}", flush=True)
        if found[0].failed:  # the others are compared with it
            sys.exit(1)
    running = [contestant for contestant in found if not contestant.failed]
    for turn in range(rounds):
        for contestant in running if turn % 2 else reversed(running):
            contestant.rounds.append(contestant.make(workload.steps))
        print(f"  round {turn + 1} of {rounds}", flush=True)
    for contestant in running:
        contestant.end()
    return found


def gradients(workload: Workload, folder: Path) -> dict[str, float]:
    """How far the first gradient of each is from that of the first, as a share of its length."""
    vectors = {}
    for label, (_, name, *_) in workload.contestants.items():
        file = folder / f"{name}.gradient"
        if file.exists():
            vectors[label] = np.fromfile(file, dtype=np.float32)
    if not vectors:
        return {}
    ours = next(iter(vectors.values()))
    return {
        label: float(np.linalg.norm(theirs - ours) / np.linalg.norm(ours))
        for label, theirs in vectors.items()
    }


def row(contestant: Contestant, first: Contestant, steps: int) -> dict[str, Any]:
    """The numbers of one contestant: medians over rounds, and ratios to the first, round by round.

    sampling and training: response tokens per processor second.
    """
    if contestant.failed:
        return {"contestant": contestant.label, "failed": contestant.failed}
    rounds = contestant.rounds
    ratios = [
        (theirs["cpu"] / theirs["tokens"]) / (ours["cpu"] / ours["tokens"])
        for theirs, ours in zip(rounds, first.rounds, strict=True)
    ]
    training = [each["cpu"] - each["sampling_cpu"] for each in rounds]
    return {
        "contestant": contestant.label,
        "steps_per_second": steps / statistics.median(each["cpu"] for each in rounds),
        "steps_per_wall_second": steps / statistics.median(each["seconds"] for each in rounds),
        "times_ours": statistics.median(ratios),
        "times_ours_range": [min(ratios), max(ratios)],
        "sampled_per_second": statistics.median(r["tokens"] / r["sampling_cpu"] for r in rounds),
        "trained_per_second": statistics.median(
            r["tokens"] / cpu for r, cpu in zip(rounds, training, strict=True)
        ),
        "tokens_per_step": statistics.mean(r["tokens"] for r in rounds) / steps,
        "peak_mb": rounds[-1]["peak_bytes"] / 1e6,
        "start_cpu_seconds": contestant.start_cpu,
    }


def checked(rows: list[dict[str, Any]], apart: dict[str, float]) -> list[str]:
    """What shows that the work was not the same; empty if it was."""
    tokens = {r["contestant"]: r["tokens_per_step"] for r in rows if "failed" not in r}
    ours = next(iter(tokens.values()))
    return [
        f"{label}: {count:.0f} tokens a step, {ours:.0f} of the first"
        for label, count in tokens.items()
        if abs(count / ours - 1) > LARGEST_TOKENS
    ] + [
        f"{label}: its gradient is {distance:.1e} away"
        for label, distance in apart.items()
        if distance > LARGEST_DIFFERENCE
    ]


def about(threads: int, rounds: int) -> str:
    """When, where and how a workload was measured."""
    cpuinfo = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    named = cpuinfo.partition("model name\t: ")[2].partition("\n")[0] or platform.machine()
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl"))
    return (
        f"{datetime.date.today()}, {os.cpu_count()} cores of {named}, "
        f"Python {platform.python_version()}, {versions}; {threads} thread(s), the C library's "
        f"allocator with its defaults; medians of {rounds} rounds, in processor seconds."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--vllm", type=Path, default=FOLDER.parents[1] / ".venv-vllm/bin/python")
    parser.add_argument("--out", type=Path, help="FILE.json; other workloads there stay")
    options = parser.parse_args()
    kept = options.out and options.out.exists()
    found: dict[str, Any] = json.loads(options.out.read_text()) if kept else {}
    for name in options.workloads.split(","):
        workload = WORKLOADS[name]
        print(workload.title, flush=True)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            contestants = measure(
                workload, folder, options.rounds, options.threads, options.vllm.absolute()
            )
            apart = gradients(workload, folder)
        rows = [row(each, contestants[0], workload.steps) for each in contestants]
        found[name] = {
            "title": workload.title,
            "about": about(options.threads, options.rounds),
            "rows": rows,
            "gradient_apart": apart,
            "not_the_same": checked(rows, apart),
        }
        print(
            pandas.DataFrame(rows).set_index("contestant").T.to_string(float_format="{:.4g}".format)
        )
        print(*found[name]["not_the_same"], sep="\n", flush=True)
        if options.out:
            options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
