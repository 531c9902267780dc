"""Two processes that train as one, kept for the session, since their imports take seconds."""

import os
import socket
import traceback
from multiprocessing import get_context

import pytest
import torch

from rec_experiments.common import distributed
from rec_experiments.config import schema

RANKS = 2
PATIENCE = 600  # seconds until a task of the ranks counts as hung


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
            process = context.Process(target=_serve, args=(theirs, environment), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def __call__(self, function, *arguments) -> list:
        """function(world, *arguments) on every rank; the results in the order of ranks. After a
        failure the processes are new ones, so that it fails no other test."""
        for pipe in self.pipes:
            pipe.send((function, arguments))
        try:
            for pipe in self.pipes:
                assert pipe.poll(PATIENCE), "a rank hangs"
            answers = [pipe.recv() for pipe in self.pipes]
            assert not (failed := [error for _, error in answers if error]), "\n".join(failed)
        except (AssertionError, EOFError):
            self.close()
            self.start()
            raise
        return [answer for answer, _ in answers]

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()


def _serve(pipe, environment):
    os.environ.update(environment)
    torch.set_num_threads(1)
    schema.register()
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
