"""Kill one run N times at random moments with SIGKILL, resume it each time, and compare it with an
uninterrupted run: metrics (times aside) and the final state must be the same, bit for bit. Every
other life draws its batches in a process of their own. The run takes four updates of each batch,
keeps a moving average of its weights and replays, so most kills are within a batch. OVERRIDES are
added to the command of the run, as `sync=in_flight`.

    python tests/kill_and_resume.py 20 [seed] [OVERRIDES]
"""

import math
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from conftest import assert_same_result

from rec_experiments.runs.run_folder import RunFolder

STEPS_PER_KILL = 12
LONGEST_START = 6.0  # seconds after which a life that need not train is killed, at most


def command(folder: Path, steps: int, pipeline: str, overrides: Sequence[str]) -> list[str]:
    return [
        sys.executable, "-m", "rec_experiments", f"run_dir={folder}", f"steps={steps}",
        "algo=asymre", "sync.interval=3", "sync.offset=1", "batch_size=8", "eval_problems=32",
        "checkpoint_every=3", "kl_every=1", "model.warm_start.steps=20", f"pipeline={pipeline}",
        "updates.epochs=2", "updates.mini_batches=2", "buffer=replay", "buffer.reuse=3",
        "proximal=moving_average", "ratio=proximal", "clip=one_side", "weight=importance",
        *overrides,
    ]  # fmt: skip


def kill_and_resume(kills: int, seed: int, root: Path, overrides: Sequence[str] = ()) -> None:
    """Raises AssertionError unless the killed run is the uninterrupted one, bit for bit."""
    steps = STEPS_PER_KILL * kills
    moments = random.Random(seed)
    killed, whole = root / "killed", root / "whole"
    done = 0
    while done < kills:
        pipeline = ("overlap", "sequential")[done % 2]
        process = subprocess.Popen(
            command(killed, steps, pipeline, overrides), stdout=subprocess.DEVNULL
        )
        # A life ends within so many rows, however fast the machine; one of four maybe before any.
        rows = len(RunFolder(killed).metrics()) + moments.randrange(1, STEPS_PER_KILL)
        end = time.monotonic() + (moments.uniform(0, LONGEST_START) if done % 4 == 3 else math.inf)
        while process.poll() is None and len(RunFolder(killed).metrics()) < rows:
            time.sleep(0.02)
            if time.monotonic() > end:
                break
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        done += 1
        rows = RunFolder(killed).metrics()
        print(f"kill {done}: after the row of step {rows[-1]['step']}", flush=True)
    for folder in (killed, whole):
        subprocess.run(
            command(folder, steps, "sequential", overrides), check=True, stdout=subprocess.DEVNULL
        )
    print(f"{done} kills in {steps} steps")
    assert done == kills, "the run ended before"
    assert_same_result(RunFolder(killed), RunFolder(whole))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.randrange(1 << 30)
        print(f"seed {seed}")
        kill_and_resume(int(sys.argv[1]), seed, Path(name), sys.argv[3:])
    print("bit-identical")
