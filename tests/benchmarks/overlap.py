"""Overlapped against sequential rollouts: wall time of the same training under schedule (20, 0).

Run `python tests/benchmarks/overlap.py` on at least two free cores. Both pipelines train the same
steps in turns (A B A B), on a batch for which drawing and training take about the same time.
Start-up and evaluation are left out: the clock runs from the first batch to the last gradient step.

What can be gained: batch 20k can only be drawn once version 20k is there, so nothing overlaps the
drawing of one batch in each interval. With R seconds to draw a batch and T to train on it, 20
batches take 20 max(R, T) + min(R, T) instead of 20 (R + T): 0.525 of the time where R = T.
"""

import argparse
import contextlib
import datetime
import os
import statistics
import tempfile
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir

from rec_experiments.config import schema
from rec_experiments.config.experiment import Experiment
from rec_experiments.runs.prepare import prepare
from rec_experiments.runs.run_folder import RunFolder

# Untrained, so that every response runs to the limit and each batch is as long as the others.
SETTING = (
    "algo=asymre", "sync.interval=20", "model.warm_start.steps=0", "eval_problems=1", "kl_every=0",
    "eval_every=1000", "checkpoint_every=1000", "threads=1",
)  # fmt: skip


def rows_of(arguments: list[str]) -> list[dict]:
    """Train in a folder that is thrown away; the rows of metrics.jsonl, one a gradient step."""
    with initialize_config_dir(str(schema.CONF), version_base="1.3"):
        experiment = schema.build(compose("config", [*SETTING, *arguments]), Experiment)
    trainer = prepare(experiment)
    with contextlib.closing(trainer.rollouts.worker), tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name))
        folder.start({}, {})
        trainer.train(folder)
        return folder.metrics()[1:]


def wall(rows: list[dict]) -> float:
    """Seconds of the gradient steps: waiting for batches, and training on them."""
    return sum(row["time/wait"] + row["time/train"] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60, help="a multiple of 20")
    parser.add_argument("--batch-size", type=int, default=16, help="prompts; 8 responses to each")
    options = parser.parse_args()
    schema.register()
    shape = [f"steps={options.steps}", f"batch_size={options.batch_size}"]
    print("round  sequential s  overlapped s  ratio")
    ratios, draw, learn = [], [], []
    for turn in range(options.rounds):
        sequential = rows_of([*shape, "pipeline=sequential"])
        overlapped = rows_of([*shape, "pipeline=overlap"])
        times = wall(sequential), wall(overlapped)
        ratios.append(times[1] / times[0])
        draw += [row["time/wait"] for row in sequential]
        learn += [row["time/train"] for row in sequential]
        print(f"{turn:5}  {times[0]:12.2f}  {times[1]:12.2f}  {ratios[-1]:5.2f}", flush=True)
    R, T = statistics.median(draw), statistics.median(learn)
    possible = (20 * max(R, T) + min(R, T)) / (20 * (R + T))
    print(
        f"\nmedian ratio {statistics.median(ratios):.2f}; possible {possible:.2f} "
        f"(draw {1e3 * R:.0f} ms, train {1e3 * T:.0f} ms a batch)\n"
        f"{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}, "
        f"torch {torch.__version__}, {datetime.date.today()}"
    )


if __name__ == "__main__":
    main()
