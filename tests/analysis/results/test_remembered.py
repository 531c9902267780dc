"""What was found in run folders is found again without looking, as long as nothing has changed."""

import gc
import os
import pickle
import time
from pathlib import Path

import pytest
from fabricated import rows_of, write_run

from rec_experiments import cache
from rec_experiments.analysis import claims
from rec_experiments.analysis.results import remembered as module
from rec_experiments.analysis.results.remembered import remembered
from rec_experiments.analysis.results.runs import leave_out
from rec_experiments.files import write_with_digest
from rec_experiments.runs.reading import REMEDIES


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("REC_EXPERIMENTS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def runs(tmp_path) -> list[Path]:
    paths = [write_run(tmp_path / name, rows_of("GRPO", seed=0)) for name in ("one", "other")]
    for path in paths:
        for name in REMEDIES:
            (path / name).touch()
            settle(path / name)
    return [*paths, tmp_path / "missing"]


def settle(file: Path) -> None:
    """As if it had been written a minute ago."""
    minute_ago = time.time() - 60
    os.utime(file, (minute_ago, minute_ago))


class Finder:
    """Counts how often it is asked. What it finds has a function in it, as verdicts have."""

    def __init__(self):
        self.asked = 0

    def __call__(self):
        self.asked += 1
        leave_out("a run is damaged")
        return {"found": 0.1, "statistic": lambda x: x + 1}


def ask(find: Finder, runs: list[Path], *question: str):
    found = remembered("numbers", question, runs, find)
    assert found["found"] == 0.1
    assert found["statistic"](1) == 2
    return find.asked


def test_it_is_found_once(runs):
    find = Finder()
    assert [ask(find, runs), ask(find, runs), ask(find, runs, "more"), ask(find, runs)] == [
        1, 1, 2, 2,
    ]  # fmt: skip


@pytest.mark.parametrize("collected", [True, False])
def test_the_garbage_collector_rests_while_it_is_found(runs, collected):
    was = gc.isenabled()
    try:
        (gc.enable if collected else gc.disable)()
        assert remembered("page", [collected], runs, gc.isenabled) is False
        assert gc.isenabled() is collected
        with pytest.raises(ZeroDivisionError):
            remembered("page", ["error", collected], runs, lambda: 1 / 0)
        assert gc.isenabled() is collected
    finally:
        (gc.enable if was else gc.disable)()


def test_runs_that_were_left_out_are_named_again(runs):
    ask(find := Finder(), runs)
    with module.left_out_within() as reasons:
        ask(find, runs)
    assert (find.asked, reasons) == (1, ["a run is damaged"])


@pytest.mark.parametrize("name", REMEDIES)
def test_any_change_of_a_file_is_seen(runs, name):
    find, file = Finder(), runs[1] / name
    ask(find, runs)
    file.write_text(file.read_text() + " ")
    settle(file)
    assert ask(find, runs) == 2
    os.utime(file, (1, 1))  # of the same size
    assert ask(find, runs) == 3
    file.unlink()
    assert ask(find, runs) == 4


def test_a_run_that_appears_is_seen(runs):
    ask(find := Finder(), runs)
    write_run(runs[-1], rows_of("GRPO", seed=1))
    assert ask(find, runs) == 2


def test_a_file_that_may_change_within_its_time_is_not_relied_on(runs):
    (runs[0] / "status.json").touch()
    find = Finder()
    assert [ask(find, runs), ask(find, runs)] == [1, 2]


def test_other_code_finds_anew(runs, monkeypatch):
    ask(find := Finder(), runs)
    monkeypatch.setattr(module, "digest_of_code", lambda: "other")
    assert ask(find, runs) == 2


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: b"", lambda data: b"\x80"])
def test_a_damaged_file_is_made_again(folder, runs, damage):
    ask(find := Finder(), runs)
    [file] = folder.glob("remembered/*.pickle")
    file.write_bytes(damage(file.read_bytes()))
    assert [ask(find, runs), ask(find, runs)] == [2, 2]


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path, monkeypatch, runs):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REC_EXPERIMENTS_CACHE", str(tmp_path / "file"))  # no folder
    find = Finder()
    assert [ask(find, runs), ask(find, runs)] == [1, 2]


class Planted:
    """What runs a stranger's code when it is read."""

    def __reduce__(self):
        return Path.touch, (Path("planted"),)


@pytest.mark.parametrize("mode", [0o700, 0o770, 0o707])
def test_what_others_could_have_put_there_is_not_read(tmp_path, folder, runs, monkeypatch, mode):
    monkeypatch.chdir(tmp_path)
    ask(find := Finder(), runs)
    [file] = folder.glob("remembered/*.pickle")
    write_with_digest(file, pickle.dumps((Planted(), [])))
    file.parent.chmod(mode)
    if mode == 0o700:
        monkeypatch.setattr(module.os, "geteuid", lambda: os.getuid() + 1)  # of another user
    assert ask(find, runs) == 2
    assert not Path("planted").exists()


def test_old_findings_are_removed(folder, runs):
    for number in range(2 * module.KEPT):
        ask(Finder(), runs, str(number))
    assert len(list((folder / "remembered").iterdir())) <= 2 * (
        module.KEPT + 1
    )  # each with its digest


def test_verdicts_are_remembered_whole(runs, tmp_path, monkeypatch):
    """No run is read for them, and they are the same."""
    monkeypatch.setattr(claims.sweeps, "names", lambda: ["fig6"])  # which is quickly composed
    first = claims.judged("mini", [tmp_path], ["seed=0"])

    def read(*_):
        raise AssertionError("a run was read")

    monkeypatch.setattr(claims, "read", read)
    again = claims.judged("mini", [tmp_path], ["seed=0"])
    assert [each.sentence for each in again] == [each.sentence for each in first]
    assert cache.folder().is_dir()
