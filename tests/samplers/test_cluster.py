"""The road of the paper's largest layout on a CPU: two ranks train, vLLM's server samples.

1. The numbers are those of one process with an engine of its own, up to rounding, also after a rank
   was killed and the run resumed.
2. Each token has the log-probability that its version gives it, also where weights change within a
   response.

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

import pytest
from conftest import SMALL, command
from ranks import PATIENCE, outcome, pids, torchrun

pytest.importorskip("vllm", reason="vLLM is not installed: make test-vllm")
pytestmark = pytest.mark.long

# AsymRE has a gradient without rewards, which a random model never earns. In float32 nothing hides
# behind the rounding of bfloat16, the servers' default.
ENGINE = (
    *SMALL, "algo=asymre", "model.heads=2", "steps=7", "eval_every=7",
    "sampler.dtype=float32", "sampler.enforce_eager=true",
    "sampler.kv_cache_memory_bytes=67108864", "sampler.max_num_seqs=16",
)  # fmt: skip
SCHEDULES = {
    "interval": ("sync.interval=3",),
    "in flight": ("sync=in_flight", "sync.tokens=4", "sync.versions=2"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The overrides of runs that use a server, which `serve` has started."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        url = f"http://localhost:{free.getsockname()[1]}"
    overrides = ("sampler=vllm_server", f"sampler.url={url}")
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "rec_experiments", "serve", *ENGINE, *overrides],
            stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        end = time.monotonic() + PATIENCE
        while not answers(url):
            running = process.poll() is None and time.monotonic() < end
            assert running, log.read_text()[-3000:]
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


def rows_of(folder):
    file = folder / "metrics.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_two_ranks_and_a_server(server, tmp_path, schedule):
    run = (*ENGINE, *SCHEDULES[schedule])
    alone = command(*run, "sampler=vllm", "run_dir=alone", cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr

    both = (*run, *server, "ranks=2", "pipeline=overlap", "run_dir=both")
    process = torchrun(*both, cwd=tmp_path)
    while process.poll() is None and len(rows_of(tmp_path / "both")) < 4:
        time.sleep(0.1)
    assert process.poll() is None, outcome(process)
    os.kill(pids(process)[1], signal.SIGKILL)
    assert outcome(process)[0] != 0
    code, out, err = outcome(torchrun(*both, cwd=tmp_path))
    assert code == 0, err
    assert "resumed after gradient step" in out

    expected, rows = rows_of(tmp_path / "alone"), rows_of(tmp_path / "both")
    assert [row["step"] for row in rows] == [row["step"] for row in expected] == [*range(8)]
    assert max(row.get("train/mismatch_max", 0) for row in rows) < 1e-4
    for row, other in zip(rows, expected, strict=True):
        assert compared(row) == pytest.approx(compared(other), rel=1e-3, abs=1e-5), row["step"]


def compared(row):
    keys = ("train/loss", "train/grad_norm", "train/reward", "train/weight_lag", "eval/accuracy")
    return {key: row[key] for key in keys if key in row}
