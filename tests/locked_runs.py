"""A short run of every preset of the paper and of SFPO, whose numbers are locked bit for bit.

    python tests/locked_runs.py            print them
    python tests/locked_runs.py --write    lock what this code computes

Instruction sets round differently. So that the lock holds on any x86-64 machine, the process that
computes takes the plainest instructions of torch, MKL and oneDNN. With these the library's modules
round alike everywhere, and theirs are the numbers that are locked; passes over a tree of prefixes
do not (they differ between processors of two makers), and are held to the same numbers by rounding.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

FILE = Path(__file__).parent / "locked_metrics.json"
PLAIN = {
    "ATEN_CPU_CAPABILITY": "default",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "OMP_NUM_THREADS": "1",
}
PRESETS = (
    "asymre", "grpo", "opmd", "pairwise", "rec_oneside_is", "rec_oneside_nois", "rec_ring",
    "rec_ring_is", "rec_twoside_is", "rec_twoside_nois", "red_drop", "red_weight", "reinforce",
    "sfpo",
)  # fmt: skip
RUN = (
    "dataset=arithmetic", "optimizer.learning_rate=5.0e-4",
    "steps=6", "batch_size=8", "group_size=8", "eval_problems=32", "eval_every=3", "kl_every=1",
    "sync.interval=4", "model.warm_start.steps=150", "dataset.modulus=4", "dataset.max_steps=2",
    "dataset.train_problems=128", "dataset.eval_problems=32",
)  # fmt: skip


def compute(passes: str = "library") -> dict[str, list[dict]]:
    """Rows of metrics.jsonl without times, by preset, from a process of its own. passes: of the
    library's modules, or over a "tree"."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, __file__, "--here", passes, folder],
            env={**os.environ, **PLAIN, "REC_EXPERIMENTS_CACHE": folder},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def compute_here(passes: str, folder: str) -> dict[str, list[dict]]:
    import torch
    from conftest import run, timeless

    from rec_experiments.config import schema
    from rec_experiments.policy import tree

    torch.set_num_threads(1)
    schema.register()
    supports = tree.supports if passes == "tree" else mock.Mock(return_value=False)
    with mock.patch.object(tree, "supports", supports):
        return {
            preset: [
                timeless(row)
                for row in run(Path(folder) / preset, *RUN, f"algo={preset}").metrics()
            ]
            for preset in PRESETS
        }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        print(json.dumps(compute_here(*sys.argv[2:])))
    elif sys.argv[1:] == ["--write"]:
        rows = (
            f' "{preset}": [\n  ' + ",\n  ".join(map(json.dumps, found)) + "\n ]"
            for preset, found in compute().items()
        )
        FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    else:
        print(json.dumps(compute(), indent=1))
