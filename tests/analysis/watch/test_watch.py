"""The view shows what the run folders say.

1. Curves, throughput, staleness and clipped share are those of the rows.
2. A run without an owner that writes nothing is stalled.
3. Damaged and foreign folders are named; no text of a folder controls the terminal.
4. Few runs are shown with their curves, many as a table; active runs show alarms.
5. It prints once without a terminal, waits for a first run, and ends when all is done.
6. Bad input is one line and exit code 2; Ctrl-C is 130; nothing imports torch.
"""

import fcntl
import io
import os
import subprocess
import sys
import time
from pathlib import Path

import fabricated
import pytest
from conftest import resolve
from rich.console import Console

from rec_experiments.analysis.regime.alarms import package_alarms
from rec_experiments.analysis.watch import live
from rec_experiments.analysis.watch.screen import curve, screen
from rec_experiments.analysis.watch.views import STALLED, Watched, folders_in, view
from rec_experiments.cli.main import run_command

CALM = {"train/ess": 0.9, "train/grad_norm": 0.3, "train/kl": 0.01}
BAD = {"train/ess": 0.02, "train/grad_norm": 0.3, "train/kl": 0.4}
ALARMS_OF_PACKAGE = package_alarms()


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


def shown(*paths: Path, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(screen(*Watched(ALARMS_OF_PACKAGE).look(paths), 0))
    return console.file.getvalue()


def test_numbers_are_those_of_the_rows(tmp_path):
    found = view(write_run(tmp_path / "a", "running"), ALARMS_OF_PACKAGE)
    assert (found.step, found.steps) == (40, 100)
    assert found.curve("eval/accuracy") == [0.25, 0.1, 0.2, 0.3, 0.4]
    assert found.recent("train/staleness") == 1.5  # of steps 31 to 40
    assert found.seconds_a_step == 2.0
    assert found.tokens_a_second == 250.0
    assert found.seconds_left == 60 * found.seconds_a_step
    assert found.recent("train/unheard") is None
    fresh = view(write_run(tmp_path / "b", "running", rows=[]), ALARMS_OF_PACKAGE)
    assert (fresh.step, fresh.tokens_a_second, fresh.seconds_left) == (0, None, None)


def test_a_run_without_an_owner_stalls(tmp_path):
    path = write_run(tmp_path / "a", "running")
    watched = Watched(ALARMS_OF_PACKAGE)

    def state() -> str:
        return watched.look([path])[0][0].state

    assert state() == "running"
    past = time.time() - STALLED - 60
    for file in path.iterdir():
        os.utime(file, (past, past))
    assert state() == "stalled"
    with open(path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert Watched(ALARMS_OF_PACKAGE).look([path])[0][0].active


def test_what_has_not_changed_is_not_read_again(tmp_path, monkeypatch):
    done, going = write_run(tmp_path / "a"), write_run(tmp_path / "b", "running")
    watched = Watched(ALARMS_OF_PACKAGE)
    before, _ = watched.look([done, going])
    fabricated.write_lines(going / "metrics.jsonl", rows_of(50))
    after, _ = watched.look([done, going])
    assert after[0].rows is before[0].rows
    assert after[1].rows is not before[1].rows
    assert [each.step for each in after] == [40, 50]


def test_folders_are_found_and_strangers_named(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / "runs" / name)
    (tmp_path / "other").mkdir()
    (tmp_path / "runs" / "notes").mkdir()
    found = folders_in([tmp_path / "runs", tmp_path / "runs" / "a", tmp_path / "other"])
    assert [path.name for path in found] == ["a", "b", "other"]
    views, left_out = Watched([]).look(found)
    assert [each.name for each in views] == ["a", "b"]
    [reason] = left_out
    assert str(tmp_path / "other") in reason
    assert shown(tmp_path / "other").startswith("no run\nleft out: ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("config.yaml", "{"),
        ("config.yaml", "steps: many"),
        ("status.json", ""),
        ("metrics.jsonl", "x\n{}\n"),
        ("metrics.jsonl", '{"step": 1, "train/ess": 1' + "0" * 400 + "}\n"),
        ("metrics.jsonl", '{"step": 1, "time/train": "long"}\n'),
        ("metrics.jsonl", '{"step": 1' + "0" * 400 + ', "time/train": 1}\n'),
    ],
)
def test_a_damaged_run_is_named_and_left_out(name, text, tmp_path):
    good, bad = write_run(tmp_path / "good"), write_run(tmp_path / "bad")
    (bad / name).write_text(text)
    views, left_out = Watched(ALARMS_OF_PACKAGE).look([bad, good])
    assert [each.name for each in views] == ["good"]
    [reason] = left_out
    assert reason.startswith(f"run folder {bad}: ")
    assert "left out: run folder" in shown(bad, good)


def test_numbers_beyond_all_measure_stop_nothing(tmp_path):
    huge = dict.fromkeys(CALM, 1e308) | {"train/clip_fraction": 1e308, "time/train": 1e308}
    rows = [row | huge for row in rows_of(40)]
    rows[30]["eval/accuracy"] = float("nan")
    text = shown(write_run(tmp_path / "a", "running", rows))
    assert "step 40/100, staleness 1.5, clipped ? %" in text
    assert "1 run: 1 running" in shown(write_run(tmp_path / "b", "running", rows[:2]))


def test_nothing_of_a_run_steers_the_terminal(tmp_path):
    name = "[red]\x1b[31mx\x9b2J"
    write_run(tmp_path / name, "fai\x1b[2Jled", reason="[bold]\x1b]0;title\x07")
    for paths in ([tmp_path / name], [tmp_path / name, *(write_run(tmp_path / n) for n in "abcd")]):
        text = shown(*paths, width=250)
        assert not {"\x1b", "\x9b", "\x07"} & set(text)
        assert "[red]\\x1b[31mx" in text.replace("\n", "")
    assert "[bold]\\x1b]0;title" in shown(tmp_path / name)


def test_few_runs_have_their_curves_and_many_a_table(tmp_path):
    going = write_run(tmp_path / "going", "running", rows_of(40, BAD))
    text = shown(going)
    for words in ("step 40/100", "staleness 1.5", "clipped 2 %", "tokens/s 250", "left 2 min"):
        assert words in text
    assert "accuracy" in text
    assert "0.25 → 0.4" in text
    assert "effective sample size" in text
    many = [going, *(write_run(tmp_path / f"done{n}", rows=rows_of(40, BAD)) for n in range(4))]
    lines = shown(*many).splitlines()
    assert lines[0] == "5 runs: 1 running, 4 done"
    assert lines[1].split() == [
        "run", "state", "step", "accuracy", "staleness", "clipped", "tokens/s", "left", "alarms",
    ]  # fmt: skip
    assert lines[2].split()[:3] == ["going", "running", "40/100"]
    assert [line.split()[-1] for line in lines[2:7]] == ["2"] * 5


NAMES = ("rec_oneside_nois_offline_seed0_1a2b3c4d", "grpo_seed1_99aa88bb", "b", "c")


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_table_fits_the_terminal(width, tmp_path):
    runs = [
        write_run(tmp_path / name, state, rows_of(40, BAD))
        for name, state in zip(NAMES, ("running", "interrupted", "failed", "done"), strict=True)
    ]
    _, head, *lines = shown(*runs, width=width).splitlines()
    words = "run state step acc stale clip tok/s left alarms"
    if width == 200:
        words = "run state step accuracy staleness clipped tokens/s left alarms"
    assert head.split() == words.split()
    long = lines[0].split()[0]
    assert (long == NAMES[0]) == (width > 80)  # whole names
    assert long.startswith("rec_ones")
    assert long.endswith("2b3c4d")
    for line, state in zip(lines, ("running", "failed", "interrupted", "done"), strict=False):
        values = line.split()
        assert len(line) <= width
        assert values[1:3] == [state, "40/100"]
        assert values[-1] == "2"
        assert {"0.4", "1.5", "2", "%", "250"} <= {*values}


def test_the_curves_of_a_run_fit_80_columns(tmp_path):
    small = {"train/ess": 0.9, "train/grad_norm": 1.23e-5, "train/entropy": 4.56e-5}
    rows = [*rows_of(40, small), *(row | {"train/ess": 0.00123} for row in rows_of(95)[41:])]
    lines = shown(write_run(tmp_path / "a", "running", rows), width=80).splitlines()
    assert all(len(line) <= 80 for line in lines)
    curves = [line for line in lines if "▁" in line]
    assert len(curves) >= 5
    assert all("…" not in line and " → " in line for line in curves)
    assert any("0.9 → 0.0012" in line for line in curves)


def test_an_alarm_is_told_of_a_run_that_is_under_way(tmp_path):
    calm = write_run(tmp_path / "calm", "running")
    assert "collapse" not in shown(calm)
    rows = rows_of(30) + [row for row in rows_of(60, BAD) if row["step"] > 30]
    for state in ("running", "done"):
        text = " ".join(shown(write_run(tmp_path / state, state, rows)).split())
        assert ("a collapse may be coming" in text) == (state == "running")
        assert "effective sample size 0.02 since step 36, should be at least 0.15" in text
        assert "KL to the reference 0.4 since step 32, should be at most 0.1" in text
        assert "gradient norm, against" not in text


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], True, ""),
        ([0.0, 1.0], True, "▁█"),
        ([0.5, 0.5], False, "▁▁"),
        ([3.0, 5.0, 4.0], False, "▁█▅"),
        ([0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0], True, "▁█▁█"),
    ],
)
def test_a_curve_in_characters(values, share, expected):
    assert curve(values, 4, share) == expected


# The command ----------------------------------------------------------------------------------


def test_it_prints_once_where_nobody_looks(tmp_path, capsys):
    write_run(tmp_path / "runs" / "a", "running")
    run_command("watch", *[str(tmp_path / "runs")])
    assert "1 run: 1 running" in capsys.readouterr().out


def refresh_until(monkeypatch, refreshed: list[float], change) -> Console:
    """A terminal; `change` gets the number of each refresh, and time passes quickly."""

    def sleep(seconds: float) -> None:
        refreshed.append(seconds)
        change(len(refreshed))

    clock = iter(range(0, 100_000, 20))  # seconds
    monkeypatch.setattr(live.time, "sleep", sleep)
    monkeypatch.setattr(live.time, "monotonic", lambda: float(next(clock)))
    return Console(file=io.StringIO(), force_terminal=True, width=100, height=30)


def test_it_goes_on_until_all_is_done(tmp_path, monkeypatch):
    path, refreshed = write_run(tmp_path / "a", "running"), []

    def change(number: int) -> None:
        fabricated.write_lines(path / "metrics.jsonl", rows_of(40 + number))
        if number == 3:
            (path / "status.json").write_text('{"state": "done"}')

    console = refresh_until(monkeypatch, refreshed, change)
    live.watch(lambda: ([path], 0), ALARMS_OF_PACKAGE, 0.5, False, console)
    text = console.file.getvalue()
    assert "step 41/100" in text
    assert "1 run: 1 done" in text
    assert set(refreshed) == {0.5}
    assert 3 <= len(refreshed) <= 6
    live.watch(lambda: ([path], 0), ALARMS_OF_PACKAGE, 0.5, False, console)  # all done: once
    assert len(refreshed) <= 6


def test_it_waits_for_a_first_run(tmp_path, monkeypatch):
    refreshed = []

    def change(number: int) -> None:
        if number == 5:
            write_run(tmp_path / "a", "running")
        if number == 6:
            (tmp_path / "a" / "status.json").write_text('{"state": "done"}')

    console = refresh_until(monkeypatch, refreshed, change)
    live.watch(lambda: ([*tmp_path.glob("a")], 0), [], 0.5, False, console)
    assert "no run is active yet; waiting (Ctrl-C ends)" in console.file.getvalue()
    assert "1 run: 1 done" in console.file.getvalue()
    assert len(refreshed) >= 6


def test_ctrl_c_is_130(tmp_path, monkeypatch):
    write_run(tmp_path / "a")

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(live, "watch", interrupt)
    with pytest.raises(SystemExit) as stop:
        run_command("watch", *[str(tmp_path)])
    assert stop.value.code == 130


def test_a_sweep_says_how_many_have_not_begun(tmp_path, capsys):
    from rec_experiments.analysis.results.figure_data import composed

    _, jobs = composed("fig6", ("seed=0",))
    paths = list(dict.fromkeys(job.path.name for job in jobs))
    write_run(tmp_path / paths[0])
    run_command("watch", *["--sweep=fig6", "seed=0", f"--runs={tmp_path}"])
    assert f"{len(paths)} runs: 1 done, {len(paths) - 1} not begun" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["/nowhere"], ["/nowhere", "no such folder"]),
        (["runs"], ["runs: no run there, nor in a folder directly below", "config.yaml"]),
        (["--every=soon"], ["--every=soon", "0.1"]),
        (["--sweep=fig77"], ["fig77"]),
        (["--sweep=fig3", "runs/a"], ["runs/a", "--sweep fig3"]),
        (["seed=0"], ["seed=0", "sweep"]),
    ],
)
def test_bad_input_is_one_line(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(SystemExit) as stop:
        run_command("watch", *arguments)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line


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
