"""Learning curves with the vLLM sampler against the native one: do they agree within seed noise?

Run `python benchmarks/vllm_curves.py` where vLLM is installed, as `make test-vllm` does. The
miniature with heads of size 32, on-policy, a few seeds of each sampler, one run after the other;
runs that are there already are not repeated.
Prints accuracy and training reward, and how far the mean reward curves of the samplers are apart
beside how far two seeds of one sampler are.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path

COMMON = (
    "model.heads=2", "sync=on_policy", "batch_size=16", "group_size=8", "eval_every=20",
    "kl_every=0", "checkpoint_every=1000",
)  # fmt: skip
SAMPLERS = {
    "native": ("sampler=native",),
    "vllm": (
        "sampler=vllm", "sampler.enforce_eager=true", "sampler.kv_cache_memory_bytes=67108864",
    ),
}  # fmt: skip
WINDOW = 10  # gradient steps that a point of a smoothed curve covers


def train(sampler: str, seed: int, steps: int, folder: Path) -> list[dict]:
    """The rows of metrics.jsonl of one run."""
    arguments = (*COMMON, *SAMPLERS[sampler], f"seed={seed}", f"steps={steps}")
    command = [sys.executable, "-m", "rec_experiments", *arguments, f"run_dir={folder}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in (folder / "metrics.jsonl").open()]


def smooth(rows: list[dict]) -> list[float]:
    """Training reward, averaged over consecutive windows."""
    rewards = [row["train/reward"] for row in rows if "train/reward" in row]
    return [statistics.mean(rewards[i : i + WINDOW]) for i in range(0, len(rewards), WINDOW)]


def distance(a: list[float], b: list[float]) -> float:
    return statistics.mean(abs(x - y) for x, y in zip(a, b, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--runs", type=Path, default=Path("runs/vllm_curves"))
    options = parser.parse_args()
    curves: dict[str, list[list[float]]] = {}
    print(f"sampler  seed  accuracy 0  accuracy {options.steps}  reward of each {WINDOW} steps")
    for name in SAMPLERS:
        for seed in range(options.seeds):
            rows = train(name, seed, options.steps, options.runs / f"{name}{seed}")
            curves.setdefault(name, []).append(smooth(rows))
            first, last = rows[0]["eval/accuracy"], rows[-1]["eval/accuracy"]
            mismatch = max(row.get("train/mismatch_max", 0.0) for row in rows)
            points = "  ".join(f"{point:.3f}" for point in curves[name][-1])
            print(
                f"{name:7}  {seed:4}  {first:10.3f}  {last:11.3f}  {points}  "
                f"mismatch at most {mismatch:.1e}",
                flush=True,
            )
    means = {
        name: [statistics.mean(at) for at in zip(*runs, strict=True)]
        for name, runs in curves.items()
    }
    print(f"mean reward curves, native against vllm: {distance(*means.values()):.4f} apart")
    for name, runs in curves.items():
        pairs = [distance(a, b) for a, b in itertools.combinations(runs, 2)]
        print(f"two seeds of {name}: {statistics.mean(pairs):.4f} apart")


if __name__ == "__main__":
    main()
