"""Checkpoints that are written while training goes on.

1. Rows and states equal those of a run that waits for each write, bit for bit.
2. Training goes on during a write, at most one write is in progress, and it stores the state of its
   step.
3. A kill during a write loses no earlier checkpoint.
4. A failed write ends the run by the next checkpoint, or at its end.
5. A signal waits for the write and saves the last state; an error abandons the write.
"""

import errno
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import SMALL, assert_equal, assert_same_result, experiment, resolve, run

from rec_experiments.common.distributed import ALONE
from rec_experiments.runs import checkpoints
from rec_experiments.runs.checkpoints import Checkpoints
from rec_experiments.runs.prepare import prepare
from rec_experiments.runs.run_folder import RunFolder

BESIDE = "async_checkpoints=true"
MOVING = (*SMALL, "algo=asymre", "steps=6", "sync.interval=2", "sync.offset=1")
KEEPS = (
    "updates.epochs=2", "updates.mini_batches=2", "ratio=proximal", "proximal=moving_average",
    "clip=one_side", "weight=importance", "buffer=replay", "buffer.reuse=1",
)  # fmt: skip
PATIENCE = 60  # seconds until a thread counts as hung


def states(folder):
    """The two that are kept, by step."""
    found = Checkpoints(folder.checkpoints, ALONE)
    return {step: found.read(step) for step in found.steps()}


def test_same_run(tmp_path):
    waits = run(tmp_path / "waits", *MOVING, *KEEPS)
    goes_on = run(tmp_path / "goes_on", *MOVING, *KEEPS, BESIDE)
    assert_same_result(goes_on, waits)
    assert_equal(states(goes_on), states(waits))
    assert [*states(waits)] == [6, 5]
    assert not list(goes_on.checkpoints.glob(".*"))
    sizes = [(f.step_folder(6) / "rank_0.pt").stat().st_size for f in (waits, goes_on)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)  # tied weights are written once


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that waits for each of its writes."""
    return run(tmp_path_factory.mktemp("whole") / "run", *MOVING, "checkpoint_every=2")


def begun(path, *overrides):
    """A trainer, and the folder that it will write."""
    folder = RunFolder(path)
    folder.start(resolve(*overrides), {})
    return prepare(experiment(*overrides)), folder


@pytest.fixture
def writer(monkeypatch):
    """What writes a file calls `before(path)` first."""
    stream = checkpoints.stream

    def patch(before):
        def slowed(path, write, given_up=lambda: False):
            before(path)
            stream(path, write, given_up)

        monkeypatch.setattr(checkpoints, "stream", slowed)

    return patch


def step_of(path):
    return int(path.parent.name.removeprefix(".step_").removesuffix(".partial"))


def test_training_goes_on(tmp_path, writer, whole):
    """The write of step 2 ends only when the row of step 3 is there: one that waits would hang."""
    reached, writing, most = threading.Event(), [], []

    def before(path):
        writing.append(path)
        most.append(len(writing))
        if step_of(path) == 2:
            assert reached.wait(PATIENCE)
        writing.remove(path)

    writer(before)
    overrides = (*MOVING, "checkpoint_every=2", BESIDE)
    trainer, folder = begun(tmp_path / "run", *overrides)

    def on_row(row):
        if row["step"] == 3:
            assert not folder.step_folder(2).exists()
            reached.set()

    trainer.train(folder, on_row)
    assert most == [1, 1, 1]
    assert_equal(states(folder), states(whole))


SLOW = """
import sys, time
from rec_experiments.runs import checkpoints
stream = checkpoints.stream

def slowed(path, write, given_up):
    def in_part(file):
        write(file)
        file.file.flush()
        if "step_00000004" in str(path):
            print("writing", flush=True)
            time.sleep(100)
    stream(path, in_part, given_up)

checkpoints.stream = slowed
from rec_experiments.cli.main import main
main()
"""


def started(tmp_path, script, *overrides):
    (tmp_path / "slow.py").write_text(script)
    command = [sys.executable, "slow.py", *MOVING, "checkpoint_every=2", BESIDE, *overrides]
    return subprocess.Popen(
        [*command, "run_dir=run"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )


def test_kill_during_a_write(tmp_path, whole):
    folder = RunFolder(tmp_path / "run")
    process = started(tmp_path, SLOW)
    while folder.last_step() < 5:  # training goes on while the state of step 4 is written
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    part = folder.checkpoints / ".step_00000004.partial"
    assert sum(file.stat().st_size for file in part.iterdir()) > 100_000
    assert [*states(folder)] == [2]
    resumed = run(tmp_path / "run", *MOVING, "checkpoint_every=2", BESIDE)
    assert not part.exists()
    assert_same_result(resumed, whole)


def test_failed_write(tmp_path, writer, whole):
    def before(path):
        if step_of(path) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    writer(before)
    with pytest.raises(OSError, match="No space left"):
        run(tmp_path / "run", *MOVING, "checkpoint_every=2", BESIDE)
    folder = RunFolder(tmp_path / "run")
    assert 2 <= folder.last_step() <= 4
    assert not states(folder)
    writer(lambda path: None)
    resumed = run(tmp_path / "run", *MOVING, "checkpoint_every=2", BESIDE)
    assert_same_result(resumed, whole)


def test_signal_during_a_write(tmp_path, writer):
    going_on = threading.Event()
    writer(lambda path: step_of(path) == 4 and going_on.wait(PATIENCE))
    overrides = (*MOVING, "checkpoint_every=4", BESIDE)
    trainer, folder = begun(tmp_path / "run", *overrides)
    told = []

    def on_row(row):
        if row["step"] == 5:
            told.append(signal.SIGTERM)
            threading.Timer(0.5, going_on.set).start()

    assert not trainer.train(folder, on_row, stop=lambda: bool(told))
    assert [*states(folder)] == [5, 4]


def test_error_during_a_write(tmp_path, monkeypatch):
    """It ends at once, and the state before it counts."""
    writing, over = threading.Event(), threading.Event()
    stream = checkpoints.stream

    def endless(path, write, given_up):
        def for_ever(file):
            writing.set()
            while not given_up():
                time.sleep(0.01)
            write(file)

        try:
            stream(path, for_ever if step_of(path) == 4 else write, given_up)
        finally:
            over.set()

    monkeypatch.setattr(checkpoints, "stream", endless)
    overrides = (*MOVING, "checkpoint_every=2", BESIDE)
    trainer, folder = begun(tmp_path / "run", *overrides)

    def on_row(row):
        if row["step"] == 5:
            assert writing.wait(PATIENCE)
            over.clear()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.train(folder, on_row)
    assert over.is_set()
    assert [*states(folder)] == [2]
    assert not list((folder.checkpoints / ".step_00000004.partial").iterdir())
