"""The switches of determinism.

1. They are set in the process that trains and in the one that draws beside it.
2. An operation that has no deterministic kernel ends the run in one line that says what to do.
"""

import functools
import json
import os

import pytest
import torch
from conftest import SMALL, experiment

from rec_experiments.common.determinism import (
    CUBLAS,
    FLASH_ATTENTION,
    secure,
)
from rec_experiments.common.errors import UserError
from rec_experiments.rollout.remote import RemoteWorker
from rec_experiments.runs.prepare import load_worker, prepare
from rec_experiments.runs.run import run as run_to_the_end

NAMES = (CUBLAS[0], FLASH_ATTENTION[0])
ON = [True, True, False, *dict([CUBLAS, FLASH_ATTENTION]).values()]
OFF = [False, False, False, None, None]


def switches() -> list:
    cudnn = torch.backends.cudnn
    return [
        torch.are_deterministic_algorithms_enabled(),
        cudnn.deterministic,
        cudnn.benchmark,
        *map(os.environ.get, NAMES),
    ]


def test_training_process(monkeypatch):
    prepare(experiment(*SMALL))
    assert switches() == ON
    monkeypatch.setenv(CUBLAS[0], ":16:8")  # deterministic too: the user's choice stands
    monkeypatch.setenv(FLASH_ATTENTION[0], "0")
    prepare(experiment(*SMALL))
    assert [os.environ[name] for name in NAMES] == [":16:8", "1"]


def reveal(exp):
    """Instead of a worker: what the process finds, and what `load_worker` makes of it."""
    found = switches()
    load_worker(exp)
    raise UserError(json.dumps([found, switches()]))


def test_drawing_process():
    exp = experiment(*SMALL, "pipeline=overlap")
    secure(True)  # as `prepare` does before it starts the other process
    with pytest.raises(UserError) as told:
        RemoteWorker(functools.partial(reveal, exp), {}, ahead=None, timeout=300, environment={})
    found, then = json.loads(str(told.value))
    assert found == [*OFF[:3], *ON[3:]]
    assert then == ON


def put(*_):
    torch.zeros(3).put_(torch.tensor([0]), torch.tensor([1.0]))


def test_no_deterministic_kernel(monkeypatch, tmp_path):
    put()
    monkeypatch.setattr("rec_experiments.training.trainer.Trainer.train", put)
    exp = experiment(*SMALL, f"run_dir={tmp_path / 'run'}")
    with pytest.raises(UserError, match=r"deterministic=true: put_ does not .*deterministic=false"):
        run_to_the_end(exp)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "failed"
    assert "put_ does not have a deterministic implementation" in status["reason"]
    assert "put_(" in status["traceback"]
