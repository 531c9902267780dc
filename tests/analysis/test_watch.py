"""The table says what the run folders say.

1. Accuracy, throughput, staleness and clipped share are those of the rows.
2. Damaged and foreign folders are named; no text of a folder controls the terminal.
3. It prints once without a terminal, and otherwise until all is done.
"""

import fcntl
import io
import subprocess
import sys
from pathlib import Path

import fabricated
import pytest
from conftest import resolve
from rich.console import Console

from rec_experiments.analysis import watch
from rec_experiments.cli.main import run_command

CALM = {"train/ess": 0.9, "train/kl": 0.01}
BAD = {"train/ess": 0.02, "train/kl": 0.4}


def rows_of(steps: int, numbers: dict = CALM) -> list[dict]:
    rows: list[dict] = [{"step": 0, "eval/accuracy": 0.25, "time/eval": 1.0}]
    for step in range(1, steps + 1):
        row = {
            "step": step, "train/staleness": float(step % 4), "train/clip_fraction": 0.02,
            "train/reward": step / 100, "tokens/response": 500, "time/train": 2.0,
        }  # fmt: skip
        rows.append(row | numbers | ({"eval/accuracy": step / 100} if step % 10 == 0 else {}))
    return rows


def write_run(path: Path, state: str = "done", rows=None, **status) -> Path:
    config = resolve("algo=grpo") | {"steps": 100, "name": path.name}
    rows = rows_of(40) if rows is None else rows
    return fabricated.write_run(path, rows, state, config, **status)


@pytest.fixture
def going(tmp_path):
    """A run that a process holds."""
    path = write_run(tmp_path / "runs" / "going", "running", rows_of(40, BAD))
    with open(path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path


def shown(*paths: Path, width: int = 160) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(watch.screen(watch.lines(watch.jobs_in(paths))))
    return console.file.getvalue()


def test_numbers_are_those_of_the_rows(going):
    count, head, line, *alarms = (each.rstrip() for each in shown(going).splitlines())
    assert count == "1 run: 1 running"
    assert head.split() == [
        "run", "state", "step", "accuracy", "staleness", "clipped", "tokens/s", "left", "note"
    ]  # fmt: skip
    # staleness: mean of steps 31 to 40
    assert " ".join(line.split()) == "going running 40/100 ▃▂▂▃▄ 0.4 1.5 2 % 250 2 min going"
    assert alarms == [
        "going: a collapse may be coming: effective sample size 0.02 since step 10, should be at "
        "least 0.15",
        "going: a collapse may be coming: KL to the reference 0.4 since step 3, should be at most "
        "0.1",
    ]


def test_states_are_in_order_and_say_why(going, tmp_path):
    write_run(tmp_path / "runs" / "calm", "failed", reason="no memory")
    write_run(tmp_path / "runs" / "again", "interrupted")
    write_run(tmp_path / "runs" / "bad", rows=rows_of(40, BAD))
    write_run(tmp_path / "runs" / "fresh", "running", rows=[])
    count, _, *lines = shown(tmp_path / "runs").splitlines()
    assert count == "5 runs: 1 running, 2 failed, 1 interrupted, 1 done"
    assert [line.split()[0] for line in lines[:5]] == ["going", "calm", "fresh", "again", "bad"]
    assert "no memory" in lines[1]
    assert "0/100" in lines[2]
    assert "ended without a result" in lines[2]
    assert sum("collapse" in line for line in lines) == 2  # of the run that is under way


def test_numbers_beyond_all_measure_stop_nothing(tmp_path):
    huge = dict.fromkeys(CALM, 1e308) | {"train/clip_fraction": 1e308, "time/train": 1e308}
    rows = [row | huge for row in rows_of(40)]
    rows[30]["eval/accuracy"] = float("nan")
    assert "40/100" in shown(write_run(tmp_path / "a", rows=rows))


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("config.yaml", "{", "1 run: 1 done"),
        ("config.yaml", "{algo: 3, sync: {}, seed: 0, steps: 40}", "1 run: 1 done"),
        ("config.yaml", "a: &a [1]\nb: *a", "1 run: 1 done"),
        ("provenance.json", '{"starts": 5}', "1 run: 1 done"),
        ("provenance.json", '{"starts": [5]}', "1 run: 1 done"),
        ("provenance.json", '{"command": 5}', "1 run: 1 done"),
        ("provenance.json", '{"release": "x"}', "1 run: 1 done"),
        ("status.json", "[", "2 runs: 1 unreadable, 1 done"),
        ("metrics.jsonl", 'x\n{"step": 40}\n', "2 runs: 1 unreadable, 1 done"),
    ],
)  # fmt: skip
def test_a_damaged_run_is_named(name, text, count, tmp_path, capsys):
    write_run(tmp_path / "runs" / "good", rows=rows_of(100))
    bad = write_run(tmp_path / "runs" / "bad")
    (bad / name).write_text(text)
    printed = shown(tmp_path / "runs", width=400)
    assert printed.startswith(count)
    assert "good" in printed
    said = printed + capsys.readouterr().err
    assert f"run folder {bad}: {name}" in said


def test_nothing_of_a_run_steers_the_terminal(tmp_path):
    name = "[red]\x1b[31mx\x9b2J"
    text = shown(write_run(tmp_path / name, "failed", reason="[bold]\x1b]0;title\x07"), width=300)
    assert not {"\x1b", "\x9b", "\x07"} & set(text)
    assert "[red]\\x1b[31mx" in text
    assert "[bold]\\x1b]0;title" in text


# The command --------------------------------------------------------------------------------------


def test_it_refreshes_until_all_is_done(going, monkeypatch):
    refreshed = []

    def sleep(seconds: float) -> None:
        refreshed.append(seconds)
        if len(refreshed) == 1:
            fabricated.write_lines(going / "metrics.jsonl", rows_of(50))
        if len(refreshed) == 2:
            (going / "status.json").write_text('{"state": "done"}')

    monkeypatch.setattr(watch.time, "sleep", sleep)
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=30)
    for _ in range(2):  # at the second time all is done
        watch.watch(lambda: watch.lines(watch.jobs_in([going])), False, console)
        assert refreshed == [watch.EVERY] * 2
    for words in ("40/100", "50/100", "1 run: 1 done"):
        assert words in console.file.getvalue()


def test_a_sweep_says_how_many_have_not_begun(tmp_path, capsys):
    run_command("watch", "--sweep=fig6", "seed=0", f"output_dir={tmp_path}")
    assert "3 runs: 3 missing" in capsys.readouterr().out


def test_as_a_program_without_torch(tmp_path):
    write_run(tmp_path / "a")
    check = (
        "import runpy, sys; sys.argv = ['rec_experiments', 'watch', sys.argv[1]];"
        "runpy.run_module('rec_experiments', run_name='__main__');"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", check, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1 run: 1 done" in done.stdout
