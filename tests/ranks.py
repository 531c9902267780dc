"""Two processes that train as one: kept for the session, since their imports take seconds, or
started by torchrun."""

import os
import re
import socket
import subprocess
import sys
import traceback
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path

import pytest
import torch

from rec_experiments.common import distributed

RANKS = 2
PATIENCE = 1200  # seconds until ranks count as hung


class Ranks:
    """Processes that have joined one world and run a function on each rank when asked."""

    def __init__(self, size: int):
        self.size = size
        self.start()

    def start(self):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        context = get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            environment = {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.size),
                "MASTER_ADDR": "localhost", "MASTER_PORT": str(port),
                "REC_EXPERIMENTS_CACHE": os.environ["REC_EXPERIMENTS_CACHE"],
                "TORCH_DISTRIBUTED_DEBUG": "DETAIL",  # a mismatch of collectives is an error
            }  # fmt: skip
            process = context.Process(target=_serve, args=(theirs, environment))
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def __call__(self, function, *arguments) -> list:
        """function(world, *arguments) on every rank; the results in the order of ranks. After a
        failure, which the other ranks may wait for in vain, the processes are new ones."""
        for pipe in self.pipes:
            pipe.send((function, arguments))
        answers = {}
        try:
            while waiting := [pipe for pipe in self.pipes if pipe not in answers]:
                ready = wait(waiting, PATIENCE)
                assert ready, "a rank hangs"
                for pipe in ready:
                    answers[pipe], error = pipe.recv()
                    assert not error, error
        except (AssertionError, EOFError):
            self.close()
            self.start()
            raise
        return [answers[pipe] for pipe in self.pipes]

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()


def _serve(pipe, environment):
    os.environ.update(environment)
    torch.set_num_threads(1)
    distributed.join()
    world = distributed.current()
    while True:
        function, arguments = pipe.recv()
        try:
            pipe.send((function(world, *arguments), None))
        except Exception:
            pipe.send((None, traceback.format_exc()))


@pytest.fixture(scope="session")
def ranks():
    pool = Ranks(RANKS)
    yield pool
    pool.close()


def torchrun(
    *arguments,
    cwd,
    program=("-m", "rec_experiments"),
):
    """The command that the README shows, as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         "--nproc-per-node", str(RANKS), *program, *arguments],
        cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def outcome(process) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its ranks
        raise
    return process.returncode, out, err


def pids(process) -> dict[int, int]:
    """Process ids of the ranks that torchrun has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    environments = {int(pid): Path(f"/proc/{pid}/environ").read_bytes() for pid in children}
    found = {pid: re.search(rb"\0RANK=(\d+)\0", text) for pid, text in environments.items()}
    return {int(match[1]): pid for pid, match in found.items() if match}
