"""Memory of the host while a state of 2 GB is saved, in turn with training and beside it, and while
it is read again.

Run `python tests/benchmarks/state_memory.py [--gigabytes N] [--folder FOLDER]`. Each in a process
of its own, with a state like that of a run: weights and two moments. Printed is the most anonymous
memory (not that of files, which the system takes back when it needs it) over the size of the state,
and the time. Resuming copies the state into a model that is there, which is once the state. One
that is saved beside training is copied first; `stands` is for how long training stands still.
"""

import argparse
import datetime
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

from rec_experiments.common.distributed import ALONE
from rec_experiments.runs.checkpoints import Checkpoints

TENSOR = 1 << 24  # elements of one, 64 MiB
WHAT = ("save", "save beside", "resume")


def anonymous() -> int:
    """Bytes of this process's memory that are no file's."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found
    return int(found[1]) * 1024


class Watch:
    """The most anonymous memory within, looked at every few milliseconds."""

    def __enter__(self) -> "Watch":
        self.most, self._over = anonymous(), threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.005):
            self.most = max(self.most, anonymous())

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def state_of(tensors: int) -> dict:
    parts = [torch.full((TENSOR,), float(n)) for n in range(tensors)]
    third = tensors // 3
    return {
        "step": 1,
        "weights": {
            "model": dict(enumerate(parts[:third])),
            "optimizer": dict(enumerate(parts[third:])),
        },
    }


def measured(what: str, tensors: int, folder: Path) -> None:
    """Print memory over the state's size, and seconds."""
    states, size = Checkpoints(folder, ALONE), tensors * TENSOR * 4
    before = anonymous()
    state = state_of(tensors)
    started = time.perf_counter()
    with Watch() as watch:
        if what == "save":
            states.save(1, state, None)
        elif what == "save beside":
            states.save(1, state, None, background=True)
            stands = time.perf_counter() - started
            states.finish()
        else:
            found, _ = states.load(None)
            assert found
            for part in ("model", "optimizer"):
                ours, theirs = state["weights"][part], found["weights"][part]
                for key, tensor in ours.items():
                    assert torch.equal(tensor[:9], theirs[key][:9])
                    tensor.copy_(theirs[key])
    seconds = time.perf_counter() - started
    stands = stands if what == "save beside" else seconds
    print((watch.most - before) / size, seconds, stands)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--folder", type=Path, help="on the disk to try; default: a temporary one")
    parser.add_argument("--measure", choices=WHAT)
    options = parser.parse_args()
    tensors = 3 * max(1, round(options.gigabytes * 1e9 / (12 * TENSOR)))
    if options.measure:
        measured(options.measure, tensors, options.folder)
        return
    print(f"{datetime.date.today()}, a state of {tensors * TENSOR * 4 / 1e9:.2f} GB")
    print("what         most memory / state  seconds  stands")
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for what in WHAT:
            command = [sys.executable, __file__, "--measure", what, "--folder", folder]
            done = subprocess.run(
                [*command, "--gigabytes", str(options.gigabytes)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode:
                sys.exit(done.stderr)
            share, seconds, stands = map(float, done.stdout.split())
            print(f"{what:11}  {share:19.2f}  {seconds:7.1f}  {stands:6.1f}", flush=True)


if __name__ == "__main__":
    main()
