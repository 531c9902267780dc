"""Verifiers and the processes that run them.

1. A final answer scores by nothing said before it; test_answers.py has its spellings.
2. The format bonus is paid for the exact format and taken for anything else.
3. Whatever one item does to its worker, every other item gets its own score.
4. Judging processes never outlive the process that asked.
"""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from pathlib import Path

import pytest
from conftest import experiment
from scripted import RIGHT, WRONG, scripted

from rec_experiments.common.problems import VerifierResult
from rec_experiments.datasets.verifiers import marks, verifier_pool
from rec_experiments.datasets.verifiers.numbers import same_number
from rec_experiments.datasets.verifiers.verifier_pool import (
    CRASHED,
    TIMED_OUT,
    VerifierPool,
    inline_verifier,
)


def score(response: str, answer: str) -> float:
    return marks.verify(response, answer, 0.0, same_number).reward


# 1. Final answers


@pytest.mark.parametrize(
    ("response", "counts"),
    [
        ("<answer>18</answer> No, wait. <answer>20</answer>", "20"),
        ("\\boxed{18} #### 18 <answer>20</answer>", "20"),
        ("<answer>18 becomes \\boxed{20}, not 18</answer>", "20"),
        ("<answer>20</answer>\n#### 18", "20"),
        ("It is 18.\n#### 18\n#### 20", "20"),
        ("The 18 apples cost $1 each. The answer is 20.", "20"),
        ("18 - 3 = 15, and 15 + 5 = 20", "neither: it is arithmetic"),
        ("<think>18 at $1 each.</think> She makes $20.", "20"),
        ("18 </answer> 20", "20"),
    ],
)
def test_only_the_final_answer_counts(response: str, counts: str) -> None:
    assert {answer: score(response, answer) for answer in ("18", "20")} == {
        "18": float(counts == "18"),
        "20": float(counts == "20"),
    }


# 2. Format


@pytest.mark.parametrize(
    ("response", "well_formed"),
    [
        ("<think>a</think><answer>18</answer>", True),
        ("\n<think>a\nb\n</think>\n\n<answer>\n18\n</answer>\n", True),
        ("<think>a</think>18", False),
        ("Sure! <think>a</think><answer>18</answer>", False),
        ("<think>a</think><answer>18</answer> Done.", False),
        ("<think>a</think><answer>1</answer><answer>18</answer>", False),
        ("<think><think>a</think></think><answer>18</answer>", False),
    ],
)
def test_format_bonus(response: str, well_formed: bool) -> None:
    assert marks.well_formed(response) == well_formed
    for answer, accuracy in (("18", score(response, "18")), ("19", 0.0)):
        result = marks.verify(response, answer, 0.1, same_number)
        assert result.accuracy == accuracy
        assert result.reward == accuracy + (0.1 if well_formed else -0.1)


# 3. Judges


GOOD, BAD = ("18", "18"), ("19", "18")


def test_inline_keeps_order_and_survives_exceptions() -> None:
    items = [GOOD, ("raise", ""), BAD, GOOD]
    assert inline_verifier(scripted)(items) == [RIGHT, CRASHED, WRONG, RIGHT]


@pytest.mark.parametrize("workers", [1, 2])
def test_one_bad_item_costs_no_other(workers: int) -> None:
    crashing = ("exit", "killed", "raise", "quit", "hoard")
    with closing(VerifierPool(scripted, workers=workers, timeout=0.5)) as isolated:
        for act, result in (("hang", TIMED_OUT), *((act, CRASHED) for act in crashing)):
            items = [GOOD, (act, ""), *[GOOD, BAD] * 20, (act, ""), GOOD]
            assert isolated(items) == [RIGHT, result, *[RIGHT, WRONG] * 20, result, RIGHT], act
        assert isolated([BAD, GOOD]) == [WRONG, RIGHT]
        assert isolated([]) == []


def test_an_item_whose_worker_was_killed_is_tried_again(tmp_path: Path) -> None:
    items = [(f"killed-once {tmp_path / str(i)}", "") for i in range(3)]
    with closing(VerifierPool(scripted, workers=2, timeout=60)) as isolated:
        assert isolated(items) == [RIGHT] * 3


def test_a_worker_killed_while_idle_costs_nothing(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with closing(VerifierPool(scripted, workers=1, timeout=60)) as isolated:
        isolated([(f"note {note}", "")])
        os.kill(int(note.read_text()), signal.SIGKILL)
        assert isolated([GOOD] * 50) == [RIGHT] * 50


def test_a_pool_that_breaks_in_a_batch_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(VerifierPool(scripted, workers=1, timeout=60)) as isolated:
        isolated([GOOD])
        pool = isolated._pool
        assert pool is not None

        def breaks(*args: object, **options: object) -> Future:
            pool.stop()
            future: Future = Future()
            future.set_exception(BrokenProcessPool("All workers expired"))
            return future

        monkeypatch.setattr(pool, "schedule", breaks)
        assert isolated([GOOD, BAD]) == [RIGHT, WRONG]
        assert isolated._pool is not pool


def test_a_lost_item_does_not_block_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(VerifierPool(scripted, workers=1, timeout=0.05)) as isolated:
        isolated([GOOD])
        monkeypatch.setattr(verifier_pool, "STARTUP", 0)
        assert isolated._outcome(Future(), isolated._pool) is None


HOSTILE = [
    "9^9^9^9^9",
    "$9^{9^{9^{9^{9}}}}$",
    "$100000000!$",
    "7" * 1_000_000,
    "\\boxed{\\frac{1}{{{",
]


def test_hostile_answers_score_0_and_the_others_what_they_earn() -> None:
    task = experiment("dataset=math").dataset
    good, wrong = ("<answer>18</answer>", "18"), ("<answer>20</answer>", "18")
    items = [
        item
        for text in HOSTILE
        for item in (good, (f"<answer>{text}</answer>", "18"), (text, "18"), wrong)
    ]
    with closing(VerifierPool(task.verify, workers=2, timeout=1)) as isolated:
        results = isolated(items)
    assert results[::4] == [RIGHT] * len(HOSTILE)
    assert results[3::4] == [WRONG] * len(HOSTILE)
    assert [v.accuracy for v in results[1::4] + results[2::4]] == [0.0] * (2 * len(HOSTILE))
    assert results[5] == TIMED_OUT  # $9^{9^{9^{9^{9}}}}$: the deadline was needed at all


def test_close_stops_the_workers_and_is_no_end(tmp_path: Path) -> None:
    isolated = VerifierPool(scripted, workers=1, timeout=60)
    for name in ("first", "second"):
        isolated([(f"note {tmp_path / name}", "")])
        isolated.close()
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / name).read_text()), 0)


class Unloadable:
    """A verifier that another process fails to load."""

    def __call__(self, response: str, answer: str) -> VerifierResult:
        return RIGHT

    def __reduce__(self) -> tuple:
        return int, ("no number",)


def test_a_verifier_that_does_not_load_is_an_error_not_a_score() -> None:
    with (
        closing(VerifierPool(Unloadable(), workers=1, timeout=60)) as isolated,
        pytest.raises(RuntimeError, match="do not start"),
    ):
        isolated([GOOD])


# 4. No orphans


def parent(*responses: str) -> subprocess.Popen:
    """Another interpreter that judges the responses, and never closes its pool."""
    code = f"""
from scripted import scripted
from rec_experiments.datasets.verifiers.verifier_pool import VerifierPool
pool = VerifierPool(scripted, workers={len(responses)}, timeout=600)
print(pool([(response, "") for response in {list(responses)!r}]))
"""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent)])
    return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition, seconds: float = 60) -> bool:
    limit = time.monotonic() + seconds
    while not condition() and time.monotonic() < limit:
        time.sleep(0.05)
    return condition()


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
def test_workers_die_with_a_killed_parent(tmp_path: Path) -> None:
    notes = [tmp_path / "busy", tmp_path / "idle"]
    process = parent(f"hang {notes[0]}", f"note {notes[1]}")
    try:
        assert wait_until(lambda: all(note.exists() and note.read_text() for note in notes))
    finally:
        process.kill()
        process.wait()
    assert wait_until(lambda: not any(alive(int(note.read_text())) for note in notes))


@linux
def test_workers_end_with_the_interpreter(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    process = parent(f"note {note}")
    assert process.wait(timeout=60) == 0
    assert wait_until(lambda: not alive(int(note.read_text())))


@linux
def test_a_worker_ends_with_what_its_verifier_started(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with closing(VerifierPool(scripted, workers=1, timeout=1)) as isolated:
        assert isolated([(f"starts {note}", ""), GOOD]) == [TIMED_OUT, RIGHT]
    assert wait_until(lambda: not alive(int(note.read_text())))
