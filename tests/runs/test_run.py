"""What these tests lock: however a run ends, its status says so, and printing never ends it.

1. Every signal that asks a process to stop, and a second Ctrl-C, leave `interrupted` behind.
2. A failure outside of the training loop leaves `failed` behind, and so do lost rows.
3. A reader that goes away, or a terminal without the letter, stops nothing.
"""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SMALL, experiment
from conftest import run as train_until

from rec_experiments.cli.errors import one_line_errors
from rec_experiments.common.errors import STOPPING, Diverged, UserError, mistake, printable
from rec_experiments.runs import run as running
from rec_experiments.runs.run import recording_early_end
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.runs.signals import on_stop


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    found = RunFolder(tmp_path)
    found.set_status("running")
    return found


def ends(folder: RunFolder, error: BaseException, afterwards=lambda: None) -> dict:
    """The status of a run that ends in this way."""
    try:
        with recording_early_end(folder, lambda line: None) as then:
            then.append(afterwards)
            raise error
    except BaseException as raised:
        return {**folder.status(), "raised": raised}


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_to_stop_is_the_reason(number, folder):
    status = ends(folder, running.Stopped(number))
    assert status["state"] == "interrupted"
    assert status["reason"].startswith(f"{signal.Signals(number).name} after step 0; ")
    assert status["raised"].code == 128 + number


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_to_stop_is_kept_and_ignored_ones_stay_so(number):
    signal.signal(number, signal.SIG_DFL)  # nohup ignores one
    told: list[int] = []
    with on_stop(told.append):
        os.kill(os.getpid(), number)
    assert told == [number]
    before = signal.signal(number, signal.SIG_IGN)
    with on_stop(told.append):
        os.kill(os.getpid(), number)
    signal.signal(number, before)
    assert told == [number]


def test_a_signal_while_the_folder_is_taken_leaves_interrupted(tmp_path, monkeypatch):
    start = RunFolder.start

    def signalled(*arguments):
        start(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)

    def too_late(number, frame):
        raise AssertionError("nobody hears the signal")

    monkeypatch.setattr(RunFolder, "start", signalled)
    before = signal.signal(signal.SIGTERM, too_late)
    try:
        with pytest.raises(SystemExit) as ended:
            running.run(experiment(*SMALL, f"run_dir={tmp_path / 'run'}"))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 128 + signal.SIGTERM
    assert RunFolder(tmp_path / "run").status()["state"] == "interrupted"


@pytest.fixture
def ctrl_c():
    """Ctrl-C as in a terminal: it is ignored in what a shell starts in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_ctrl_c_does_not_leave_running_behind(folder, monkeypatch):
    last_step, seen = folder.last_step, []

    def once_more() -> int:
        os.kill(os.getpid(), signal.SIGINT)
        return last_step()

    monkeypatch.setattr(folder, "last_step", once_more)
    status = ends(folder, KeyboardInterrupt(), lambda: seen.append(folder.status()["state"]))
    assert status["state"] == "interrupted"
    assert status["raised"].code == 128 + signal.SIGINT
    assert seen == ["interrupted"]  # what may take long comes after the status
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_says_from_which_step_the_same_command_resumes(folder):
    folder.append("metrics.jsonl", [{"step": 6}])
    reason = ends(folder, KeyboardInterrupt())["reason"]
    assert reason == (
        "SIGINT after step 6; the same command resumes the run from step 0, its newest checkpoint"
    )


def test_a_policy_that_is_no_longer_finite_is_one_line(folder):
    folder.append("metrics.jsonl", [{"step": 6}])
    status = ends(folder, FloatingPointError("norm of the gradient: nan"))
    assert isinstance(status["raised"], Diverged)
    assert status["state"] == "failed"
    assert status["reason"] == str(status["raised"])
    assert "no longer finite at step 7 (norm of the gradient: nan)" in status["reason"]


def test_a_gradient_that_is_not_finite_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "rec_experiments.training.updates.AdamW.step", lambda *arguments: float("nan")
    )
    with pytest.raises(FloatingPointError, match="nan"):
        train_until(tmp_path / "run", *SMALL)


def test_a_piece_that_gives_no_number_is_not_the_policys_fault(tmp_path, monkeypatch):
    def of_no_number(piece, log_ratio_BT, batch):
        return log_ratio_BT * float("nan")

    monkeypatch.setattr("rec_experiments.algo.weights.CappedWeight.__call__", of_no_number)
    with pytest.raises(FloatingPointError, match="nan; the log-ratios are finite, so a piece"):
        train_until(tmp_path / "run", *SMALL, "algo=asymre", "weight=capped")


def boom(*arguments):
    raise ValueError("boom")


def test_a_failure_outside_of_training_is_in_the_status(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "introduce", boom)
    with pytest.raises(ValueError, match="boom"):
        running.run(experiment(*SMALL, f"run_dir={tmp_path / 'run'}"))
    status = RunFolder(tmp_path / "run").status()
    assert (status["state"], status["reason"]) == ("failed", "ValueError: boom")
    assert 'raise ValueError("boom")' in status["traceback"]


def test_a_picture_that_cannot_be_drawn_is_a_note(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(running, "draw_curves", boom)
    running.run(experiment(*SMALL, f"run_dir={tmp_path / 'run'}"))
    assert RunFolder(tmp_path / "run").status()["state"] == "done"
    assert "curves.png: cannot be drawn (ValueError: boom)" in capsys.readouterr().out


def test_rows_that_were_lost_meanwhile_end_the_run(tmp_path, monkeypatch):
    def lose(trainer, folder, *others):
        folder.append("metrics.jsonl", [{"step": 3}])
        return True

    monkeypatch.setattr(running.Trainer, "train", lose)
    with pytest.raises(UserError, match="it has lost the rows of 3 steps, the first is 0"):
        running.run(experiment(*SMALL, f"run_dir={tmp_path / 'run'}"))
    assert RunFolder(tmp_path / "run").status()["state"] == "failed"


def test_a_call_of_sys_exit_is_a_failure(folder):
    status = ends(folder, SystemExit(0))
    assert isinstance(status["raised"], RuntimeError)
    assert status["state"] == "failed"


def test_a_reader_that_goes_away_stops_nothing():
    """As in `| head`."""
    code = (
        "from rec_experiments.runs.display import Screen, say\n"
        "screen = Screen()\nfor _ in range(9): say(screen, 'x' * 100_000)\n"
        "import sys; sys.stderr.write('reached')"
    )
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b"reached"
    assert process.wait() == 0


def test_texts_of_others_cannot_steer_a_terminal():
    assert printable("Σ \x1b[2J\r\x9b1m\u202eabc\ud800\n\tend") == (
        r"Σ \x1b[2J\r\x9b1m\u202eabc\ud800  end"
    )


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_what_is_full_is_one_line(code, capsys):
    with pytest.raises(SystemExit) as ended, one_line_errors():
        raise OSError(code, os.strerror(code))
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        f"error: {os.strerror(code)}; the same command resumes the run\n"
    )


def followed(cause: Exception) -> Exception:
    """An error without a name of its own, as a package raises that imports its parts late."""
    error = ModuleNotFoundError("Could not import module 'Model'. Are its requirements there?")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModuleNotFoundError("No module", name="wandb"), "wandb: is not installed here"),
        (ModuleNotFoundError("No module", name="math_verify.parser"), "pip install math-verify"),
        (ModuleNotFoundError("No module", name="hydra.errors"), "pip install hydra-core"),
        (followed(ModuleNotFoundError("No module", name="pandas")), "pip install pandas"),
        (ModuleNotFoundError("Could not import module"), None),
        (OSError(36, "File name too long", "x" * 300), "xxx: is too long"),
        (ModuleNotFoundError("No module", name="rec_experiments.gone"), None),
        (MemoryError("Unable to allocate 59.6 GiB"), "machine has (Unable to allocate 59.6 GiB)"),
        (OSError(5, "Input/output error"), None),
    ],
)
def test_what_a_user_can_mend_is_told_apart_from_what_is_ours(error, words):
    found = mistake(error)
    assert (found is None) if words is None else (words in str(found))


def test_a_name_of_300_characters_is_one_line():
    with pytest.raises(UserError, match="too long"):
        RunFolder(Path("x" * 300)).check({})


def test_status_of_a_run_is_read_whatever_ended_it(folder):
    assert ends(folder, ValueError("\x1b[2J \ud800"))["state"] == "failed"
