"""The road of the paper's largest layout on a CPU: two ranks train, vLLM's server samples, and the
run is killed and resumed.

1. Tokens of fresh batches have the trainer's log-probabilities; their versions are the schedule's.
2. The numbers are those of an engine in the process of a single rank, up to rounding.
3. A killed run ends as one that was not.

Skipped where vLLM is not installed; `make test-vllm` makes an environment that has it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from conftest import SMALL, command

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")

PATIENCE = 600  # seconds for a start
ENGINE = (
    *SMALL, "model.heads=2", "sampler.dtype=float32", "sampler.enforce_eager=true",
    "sampler.kv_cache_memory_bytes=67108864", "sampler.max_num_seqs=16", "sync.interval=3",
    "steps=7", "eval_every=7",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The overrides of runs with a server that `serve` has started."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        url = f"http://localhost:{free.getsockname()[1]}"
    overrides = (*ENGINE, "sampler=vllm_server", f"sampler.url={url}")
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "rec_experiments", "serve", *overrides],
            stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        end = time.monotonic() + PATIENCE
        while not answers(url):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(1)
        yield overrides
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def answers(url):
    try:
        return urllib.request.urlopen(f"{url}/health", timeout=5).status == 200
    except OSError:
        return False


def two_ranks(folder, overrides):
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "-m", "rec_experiments", *overrides, "ranks=2", "pipeline=overlap", f"run_dir={folder}"],
        cwd=folder.parent, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip


def rows_of(folder):
    file = folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_two_ranks_and_a_server(server, tmp_path):
    alone = command(*ENGINE, "sampler=vllm", "run_dir=alone", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    expected = rows_of(tmp_path / "alone")

    folder = tmp_path / "two"
    process = two_ranks(folder, server)
    while len(rows_of(folder)) < 4 and process.poll() is None:
        time.sleep(0.2)
    assert process.poll() is None, process.communicate()[0]
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)  # a rank; torchrun ends the other
    process.communicate()
    again = two_ranks(folder, server)
    out, _ = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, out
    assert "resumed after gradient step" in out

    rows = rows_of(folder)
    assert [row["step"] for row in rows] == [row["step"] for row in expected] == list(range(8))
    # Batches 0, 3 and 6 come from the policy that trains on them.
    assert ["train/mismatch" in row for row in rows] == [n % 3 == 1 for n in range(8)]
    assert all(row.get("train/mismatch_max", 0) < 1e-4 for row in rows)
    for row, other in zip(rows, expected, strict=True):
        for key in ("train/loss", "train/grad_norm", "train/reward", "eval/accuracy"):
            assert row.get(key) == pytest.approx(other.get(key), rel=1e-3, abs=1e-5), row["step"]


def test_weights_change_within_a_response(server, tmp_path):
    overrides = (*server, "sync=in_flight", "sync.tokens=4", "sync.versions=2", "run_dir=run")
    overrides = [each for each in overrides if each != "sync.interval=3"]
    done = command(*overrides, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = rows_of(tmp_path / "run")
    assert [row["step"] for row in rows] == list(range(8))
    assert any(row.get("train/several_versions", 0) > 0 for row in rows)
