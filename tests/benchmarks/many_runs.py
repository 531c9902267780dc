"""What `claims` and `report` cost over many runs.

python tests/benchmarks/many_runs.py [--runs N] [--seeds N]

The runs are made up, with folders of the size and shape of real ones: every figure's runs at the
miniature, for as many seeds as it takes. Prints the processor seconds (user and system, of all
processes) and wall-clock seconds of each command, and the ratio of the former to a process that
only reads the same rows by `json`.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rec_experiments import sweeps
from rec_experiments.analysis.figures import catalogue
from rec_experiments.analysis.figures.computed import COMPUTED
from rec_experiments.runs import provenance
from rec_experiments.sweeps import Job

SCALE = "scale=mini"
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # libyaml's, where there is one, is quicker
NUMBERS = (
    "loss", "ratio_mean", "ratio_max", "ratio_p01", "ratio_p50", "ratio_p99", "ess",
    "log_ratio_second_moment", "clip_fraction", "clip_fraction_high", "clip_fraction_low",
    "clip_fraction_positive", "clip_fraction_negative", "entropy", "grad_norm",
    "distinct_responses", "live_groups",
)  # fmt: skip
COUNTS = ("turns", "truncated", "verifier_timeouts", "verifier_crashes", "redrawn_groups")
TIMES = ("rollout", "reward", "wait", "train")
LOWEST = (sys.executable, "-c", """
import json, pathlib, sys
for file in pathlib.Path(sys.argv[1]).glob("*/metrics.jsonl"):
    list(map(json.loads, file.read_bytes().splitlines()))
""")  # fmt: skip


def rows_of(config: dict[str, Any], rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Rows of a run with a random learning curve; one in ten runs falls again."""
    steps, interval = config["steps"], config["sync"]["interval"] or config["steps"]
    height, middle, steep = rng.uniform(0.4, 0.9), rng.uniform(0.1, 0.6), rng.uniform(1, 4)
    falls, drawn = rng.random() < 0.1, config["batch_size"] * config["group_size"]
    for step in range(steps + 1):
        at = step / steps
        level = 0.35 + (height - 0.35) * at**steep / (at**steep + middle**steep)
        level *= 1 - 0.8 * at if falls else 1
        row: dict[str, Any] = {"step": step}
        if step:
            lag = min(step - 1, (step - 1) % interval + config["sync"]["offset"])
            reward = rng.binomial(drawn, level) / drawn
            row |= {"train/reward": reward, "train/accuracy": reward}
            row |= dict.fromkeys((f"train/{name}" for name in COUNTS), 0)
            row |= {"train/staleness": float(lag), "train/policy_version": step - 1 - lag}
            row |= {"train/staleness_min": lag, "train/staleness_max": lag}
            row |= {f"train/{name}": float(abs(rng.normal())) for name in NUMBERS}
            if step % config["kl_every"] == 0:
                row |= {f"train/{name}": rng.random() for name in ("kl", "kl_response")}
                row |= {f"train/{name}": rng.random() for name in ("weight_step", "weight_lag")}
            row |= {"train/learning_rate": 3e-5, "tokens/response": int(rng.integers(2000, 4000))}
            row |= {
                f"tokens/{name}_per_second": 1e5 * rng.random() for name in ("train", "rollout")
            }
            row |= {f"time/{name}": 0.1 * rng.random() for name in TIMES}
        if step % config["eval_every"] == 0 or step == steps:
            problems = config["eval_problems"]
            accuracy = rng.binomial(problems, level) / problems
            row |= {"eval/reward": accuracy, "eval/accuracy": accuracy, "time/eval": rng.random()}
            row |= {"eval/response_length": float(rng.uniform(15, 25))}
            row |= {f"eval/{name}": 0 for name in COUNTS[:-1]}
        yield row


def samples_of(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    text = "4*2=0;0*6=0;0*6=0;#0"
    for step in range(0, config["steps"] + 1, config["eval_every"]):
        for _ in range(4):
            yield {"step": step, "prompt": "4*2*6*6=", "response": text, "answer": text,
                   "reward": 1.0}  # fmt: skip


def write_run(job: Job, folder: Path, origin: dict[str, Any], rng: np.random.Generator) -> None:
    """A finished run folder, with the provenance of the current code."""
    path = folder / job.path.name
    path.mkdir()
    files = {
        "config.yaml": yaml.dump(job.config, Dumper=DUMPER, sort_keys=False),
        "provenance.json": json.dumps(origin, indent=2),
        "status.json": json.dumps({"state": "done"}),
        "metrics.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows_of(job.config, rng)),
        "samples.jsonl": "".join(f"{json.dumps(row)}\n" for row in samples_of(job.config)),
    }
    for name, text in files.items():
        (path / name).write_text(text)


def jobs_of(runs: int, folder: Path) -> list[Job]:
    """The first `runs` different jobs of all figures, seed after seed, with their manifests."""
    found: dict[Path, Job] = {}
    for seed in range(runs):
        for name in [each for each in catalogue.usual() if each not in COMPUTED]:
            overrides = [SCALE, f"seed={seed}", f"output_dir={folder}"]
            jobs = sweeps.jobs(sweeps.load_figure(name, overrides), overrides)
            found |= {job.path: job for job in jobs if job.path not in found}
            sweeps.write_manifests(name, [job for job in jobs if job.path in [*found][:runs]])
        if len(found) >= runs:
            break
    return list(found.values())[:runs]


def cost(command: tuple[str, ...]) -> tuple[float, float]:
    """Processor and wall-clock seconds of a command and its children; a failing command raises."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, time.perf_counter() - begun


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seeds", type=int, help="seeds to draw; default: the figure's own")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        runs = folder / "runs"
        runs.mkdir()
        begun = time.process_time()
        jobs = jobs_of(given.runs, runs)
        print(f"{len(jobs)} runs, composed in {time.process_time() - begun:.1f} processor seconds")
        origin = provenance.after({}, provenance.collect(jobs[0].config, data="made up"), 0)
        for number, job in enumerate(jobs):
            write_run(job, runs, origin, np.random.default_rng(number))
        lowest = cost((*LOWEST, str(runs)))[0]
        print(f"{'':24}{'processor':>12}{'times json':>14}{'clock':>12}")
        print(f"{'rows read by json':24}{lowest:>10.2f} s{1:>14.2f}")
        asked = [f"--runs={runs}"]
        if given.seeds:
            asked.append(f"seed={','.join(map(str, range(given.seeds)))}")
        for name, out in (("claims", "claims.json"), ("report", "report.html")):
            command = (
                sys.executable, "-m", "rec_experiments", name, *asked, f"--out={folder / out}",
            )  # fmt: skip
            used, passed = cost(command)
            print(f"{name:24}{used:>10.2f} s{used / lowest:>14.2f}{passed:>10.2f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
