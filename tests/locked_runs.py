"""Short runs of two presets, whose numbers are locked bit for bit.

    python tests/locked_runs.py            print them
    python tests/locked_runs.py --write    lock what this code computes, after raising RELEASE

Instruction sets round differently. So that the lock holds on any x86-64 machine, the process that
computes uses the plainest instructions of torch, MKL and oneDNN. With these the library's modules
round alike everywhere, and their numbers are locked. Passes over a tree of prefixes round
differently on processors of two makers, and are compared approximately.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from rec_experiments import RELEASE

FILE = Path(__file__).parent / "locked_metrics.json"
PLAIN = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
}
PRESETS = ("grpo", "rec_ring")
RUN = (
    "dataset=arithmetic", "optimizer.learning_rate=5.0e-4",
    "steps=6", "batch_size=8", "group_size=8", "eval_problems=32", "eval_every=3", "kl_every=1",
    "sync.interval=4", "model.warm_start.steps=150", "dataset.modulus=4", "dataset.max_steps=2",
    "dataset.train_problems=128", "dataset.eval_problems=32",
)  # fmt: skip


def compute(*passes: str) -> list[dict[str, list[dict]]]:
    """Rows of metrics.jsonl without times, by preset, for each kind of passes, from a separate
    process. passes: "library" for the library's modules, or "tree"."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--here", folder, *passes],
            env={**os.environ, **PLAIN, "REC_EXPERIMENTS_CACHE": folder},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def compute_here(folder: Path, passes: str) -> dict[str, list[dict]]:
    import torch
    from conftest import run, timeless

    from rec_experiments.policy import tree

    torch.set_num_threads(1)
    supports = tree.supports if passes == "tree" else mock.Mock(return_value=False)
    with mock.patch.object(tree, "supports", supports):
        return {
            preset: [
                timeless(row)
                for row in run(folder / passes / preset, *RUN, f"algo={preset}").metrics()
            ]
            for preset in PRESETS
        }


def write(runs: dict[str, list[dict]], file: Path = FILE, release: int = RELEASE) -> None:
    """Lock these runs. Refuses other numbers than those of the lock under the same release."""
    locked = json.loads(file.read_text())
    if runs != locked["runs"] and release <= locked["release"]:
        raise SystemExit(
            f"RELEASE={release}: numbers of runs have changed since release {locked['release']}; "
            "raise it in rec_experiments/config/identity.py"
        )
    presets = (
        f'  "{preset}": [\n   ' + ",\n   ".join(map(json.dumps, rows)) + "\n  ]"
        for preset, rows in runs.items()
    )
    file.write_text(
        f'{{\n "release": {release},\n "runs": {{\n' + ",\n".join(presets) + "\n }\n}\n"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        folder, *kinds = sys.argv[2:]
        print(json.dumps([compute_here(Path(folder), passes) for passes in kinds]))
    elif sys.argv[1:] == ["--write"]:
        write(*compute("library"))
    else:
        print(json.dumps(*compute("library"), indent=1))
