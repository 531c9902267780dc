"""A run folder.

1. A folder that holds anything and is not a run's is refused, and nothing in it is touched.
2. Only names that a run writes are states; a state knows its run, and is refused under another.
3. A damaged file is one line that names it; a torn last line is cut off; lost rows are noticed.
4. A checkpoint with any flipped bit is skipped, refused, or equal.
"""

import errno
import fcntl
import json
import os
import stat
import threading
from pathlib import Path

import pytest
import torch
import yaml
from conftest import SMALL, refused, resolve, run
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rec_experiments.common.distributed import ALONE
from rec_experiments.common.errors import UserError
from rec_experiments.runs import checkpoints
from rec_experiments.runs.checkpoints import Checkpoints
from rec_experiments.runs.reading import read_rows
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.training.state import fitting


@pytest.fixture(scope="module")
def config() -> dict:
    return resolve(*SMALL)


@pytest.fixture
def folder(tmp_path, config) -> RunFolder:
    """A run that has begun."""
    found = RunFolder(tmp_path / "run")
    found.start(config, {"command": ["run"]})
    return found


def again(folder: RunFolder, config: dict) -> RunFolder:
    """The folder in the hands of the next process."""
    folder.unlock()
    found = RunFolder(folder.path)
    found.check(config)
    found.start(config, {})
    return found


def test_run_does_not_resume_on_other_data(tmp_path, config):
    """Only a run that has a state is bound to its data."""
    folder = RunFolder(tmp_path / "run")
    folder.start(config, {"data": "first"})
    folder.unlock()
    folder.start(config, {"data": "second"})
    folder.save_checkpoint(1, state(1))
    folder.unlock()
    folder.start(config, {"data": "second"})
    folder.unlock()
    with pytest.raises(UserError, match="problems of its data set have changed since it started"):
        folder.start(config, {"data": "third"})


def state(step: int) -> dict:
    return {"step": step, "weights": {}}


def loaded(step: int) -> dict:
    return {**state(step), "ranks": 1}


def contents(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


STRANGERS = {
    "rows of another tool": {"metrics.jsonl": '{"loss": 1}\n', "curves.png": "theirs"},
    "checkpoints of another tool": {"checkpoints/step_100/model.pt": "theirs"},
    "a configuration of another tool": {"config.yaml": "model: gpt\n", "metrics.jsonl": ""},
    "a configuration that is garbage": {"config.yaml": "{oops"},
}


@pytest.mark.parametrize("name", STRANGERS)
def test_a_folder_that_is_no_runs_is_refused_and_left_as_it_is(name, tmp_path, monkeypatch, capfd):
    for file, text in STRANGERS[name].items():
        (tmp_path / "theirs" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "theirs" / file).write_text(text)
    before = contents(tmp_path)
    assert "theirs" in refused([*SMALL, f"run_dir={tmp_path}/theirs"], monkeypatch, capfd)
    assert contents(tmp_path) == before


def test_what_stands_in_a_folder_before_its_run_is_no_strangers(tmp_path, config):
    (tmp_path / "checkpoints").mkdir()
    for name in ("log.txt", ".lock", ".0123456789abcdef.partial"):
        (tmp_path / name).write_text("")
    RunFolder(tmp_path).check(config)


def test_a_lost_configuration_lets_no_other_run_go_on(folder, config):
    folder.save_checkpoint(2, state(2))
    (folder.path / "config.yaml").unlink()
    with pytest.raises(UserError, match=r"holds checkpoints but no config\.yaml; .* restore"):
        RunFolder(folder.path).check(config)


def test_a_state_is_refused_under_another_seed(folder, config):
    folder.save_checkpoint(2, state(2))
    other = {**config, "seed": 5}
    (folder.path / "config.yaml").write_text(yaml.safe_dump(other))
    found = again(folder, other)
    with pytest.raises(UserError, match=r"step_00000002: .* seed is 0 there and 5 here"):
        found.load_checkpoint()


def test_a_state_carries_nothing_but_what_was_saved(folder, config):
    folder.save_checkpoint(2, state(2))
    assert again(folder, config).load_checkpoint() == (loaded(2), [])
    assert RunFolder(folder.path).load_checkpoint() == (loaded(2), [])  # of one that only looks


def test_names_of_a_user_are_neither_states_nor_removed(folder, config):
    for name in ("step_best", "step_12", "step_00000002_copy"):
        (folder.checkpoints / name).mkdir()
    (folder.checkpoints / "step_99999999").symlink_to(folder.path)
    for step in (1, 2, 3):
        folder.save_checkpoint(step, state(step))
    assert sorted(each.name for each in folder.checkpoints.iterdir()) == [
        "step_00000002", "step_00000002_copy", "step_00000003", "step_12", "step_99999999",
        "step_best",
    ]  # fmt: skip
    found = again(folder, config)
    assert found.load_checkpoint() == (loaded(3), [])
    assert found.provenance()["starts"][-1]["from_step"] == 3


def test_a_damaged_state_of_a_later_step_does_not_cost_the_others(folder):
    for step in (1, 2, 9):
        folder.save_checkpoint(step, state(step))
    (folder.step_folder(9) / "rank_0.pt").write_bytes(b"")
    folder.save_checkpoint(3, state(3))
    assert folder.load_checkpoint() == (loaded(3), ["step_00000009"])
    assert folder.step_folder(2).is_dir()


class Foreign:
    """What torch does not load without being asked to trust it."""


def test_a_whole_state_of_other_code_is_one_line(folder):
    folder.save_checkpoint(1, {**state(1), "piece": Foreign()})
    with pytest.raises(UserError, match=r"step_00000001: does not fit .* remove it"):
        folder.load_checkpoint()


def test_a_state_that_does_not_fit_is_one_line(folder):
    model = torch.nn.Linear(2, 2)
    for found in (state(1), {**state(1), "model": torch.nn.Linear(3, 3).state_dict()}):
        with (
            pytest.raises(UserError, match="step_00000001: does not fit this run or this code"),
            fitting(folder.step_folder(1), found, steps=3),
        ):
            model.load_state_dict(found["model"])


def test_a_state_of_another_step_than_its_folder_is_refused(folder):
    folder.save_checkpoint(9, state(1))
    with pytest.raises(UserError, match=r"step_00000009: .*it is of step 1\)"):
        folder.load_checkpoint()


def test_a_state_beyond_the_last_step_is_refused_and_not_called_interrupted(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", *SMALL, until=2)
    folder = RunFolder(tmp_path / "run")
    state, _ = folder.load_checkpoint()
    folder.save_checkpoint(99, {**state, "step": 99})
    with pytest.raises(UserError, match=r"step_00000099: .*the run ends after step 3\)"):
        run(tmp_path / "run", *SMALL)


@pytest.mark.parametrize("text", ["", "{oops", "[1]", "\udcff\udcfe"])
@pytest.mark.parametrize("name", ["status.json", "provenance.json", "config.yaml"])
def test_a_damaged_file_is_one_line_that_names_it(name, text, folder, config):
    (folder.path / name).write_text(text, errors="surrogateescape")  # the last is no text
    read = {
        "config.yaml": lambda: RunFolder(folder.path).check(config),
        "status.json": lambda: RunFolder(folder.path).is_finished(remake=False),
        "provenance.json": lambda: RunFolder(folder.path).other_releases(),
    }
    with pytest.raises(UserError) as error:
        read[name]()
    assert str(error.value).startswith(f"run folder {folder.path}: {name} cannot be read (")
    assert len(str(error.value).splitlines()) == 1


ROWS = [{"step": step, "loss": step / 3} for step in range(4)]


@pytest.mark.parametrize("torn", ["", '{"step": 9, "lo', '{"step": 9, "lo\n', "\x00\x00\n"])
def test_a_torn_last_line_is_cut_off(torn, folder):
    folder.append("metrics.jsonl", ROWS)
    whole = (folder.path / "metrics.jsonl").read_text()
    (folder.path / "metrics.jsonl").write_text(whole + torn)
    assert folder.metrics() == ROWS
    assert folder.last_step() == 3
    folder.rewind(3)
    assert (folder.path / "metrics.jsonl").read_text() == whole


@pytest.mark.parametrize("name", ["metrics.jsonl", "samples.jsonl"])
def test_a_damaged_line_among_others_is_named(name, folder):
    folder.append("metrics.jsonl", [] if name == "metrics.jsonl" else ROWS)
    folder.append(name, ROWS[:2])
    with open(folder.path / name, "a") as file:
        file.write("garbage\n")
    folder.append(name, ROWS[2:])
    with pytest.raises(UserError, match=rf"{name} cannot be read \(line 3 is damaged\); "):
        folder.rewind(3)
    assert json.loads((folder.path / name).read_text().splitlines()[1]) == ROWS[1]


def test_lost_rows_are_noticed(folder):
    folder.append("metrics.jsonl", [*ROWS[:1], *ROWS[2:]])
    folder.check_rows(0)
    with pytest.raises(UserError, match=r"lost the rows of 1 steps, the first is 1\); restore"):
        folder.rewind(3)
    (folder.path / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match=r"lost the rows of 4 steps, the first is 0\)"):
        folder.check_rows(3)
    folder.check_rows(-1)


# Locks and checkpoints ----------------------------------------------------------------------------


def test_two_processes_do_not_run_one_folder(folder, config, monkeypatch):
    monkeypatch.setattr("rec_experiments.runs.run_folder.LOCK_PATIENCE", 0.1)
    other = RunFolder(folder.path)
    assert other.is_held()
    with pytest.raises(UserError, match="another process is running it"):
        other.start(config, {})
    folder.unlock()
    assert not other.is_held()


def test_a_file_system_without_locks(tmp_path, config, monkeypatch, capsys):
    def flock(file, kind):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = RunFolder(tmp_path / "run")
    folder.start(config, {})
    assert folder.status()["state"] == "running"
    assert capsys.readouterr().err.endswith("its file system has no locks; start one process\n")


def tensors(step: int) -> dict:
    return {"step": step, "weights": {"a": torch.arange(70.0), "b": torch.ones(3, 5)}, "n": 3}


def test_no_flipped_bit_of_a_checkpoint_counts_as_the_state(folder):
    folder.save_checkpoint(1, tensors(1))
    state, _ = folder.load_checkpoint()
    expected = repr(state)
    file = folder.step_folder(1) / "rank_0.pt"
    whole = file.read_bytes()
    ends = {"skipped": 0, "refused": 0, "equal": 0}
    for place in range(0, len(whole), 11):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        file.write_bytes(flipped)
        try:
            found, damaged = folder.load_checkpoint()
        except UserError:
            ends["refused"] += 1
        else:
            ends["skipped" if found is None else "equal"] += 1
            assert damaged if found is None else repr(found) == expected, place
    assert min(ends.values()) > 0
    for length in (0, 10, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        assert folder.load_checkpoint() == (None, ["step_00000001"])


def test_finish_without_waiting_returns_while_a_thread_writes(tmp_path, monkeypatch):
    goes_on, stream = threading.Event(), checkpoints.stream

    def waiting(*arguments):
        goes_on.wait(60)
        stream(*arguments)

    monkeypatch.setattr(checkpoints, "stream", waiting)
    states = Checkpoints(tmp_path, ALONE)
    states.save(1, tensors(1), None, background=True)
    late = threading.Timer(5, goes_on.set)
    late.start()
    states.finish(wait=False)
    assert not goes_on.is_set()
    assert states.steps() == []
    late.cancel()
    goes_on.set()
    states.finish()
    assert states.steps() == [1]


def test_the_error_of_a_full_disk_is_not_hidden_by_torch(tmp_path):
    """torch would end its archive on the same disk, and report that instead."""

    class Full:
        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def flush(self):
            """Nothing."""

    def write(out):
        out.file = Full()
        torch.save(torch.ones(9), out)

    with pytest.raises(OSError, match="No space left"):
        checkpoints.stream(tmp_path / "x.pt", write)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_removed(folder, config):
    (folder.path / ".0123.partial").write_text("half")
    (folder.checkpoints / ".step_00000007.partial").mkdir()
    (folder.checkpoints / ".step_00000008.partial").symlink_to(folder.path)
    again(folder, config)
    left = {each.name for each in (*folder.path.iterdir(), *folder.checkpoints.iterdir())}
    assert left == {".lock", "checkpoints", "config.yaml", "provenance.json", "status.json"}


def test_provenance_is_for_its_owner_alone_and_the_rest_for_all(folder):
    umask = os.umask(0)
    os.umask(umask)
    modes = {
        file.name: stat.S_IMODE(file.stat().st_mode)
        for file in folder.path.iterdir()
        if file.is_file()
    }
    assert modes["provenance.json"] == 0o600
    assert modes["status.json"] == modes["config.yaml"] == 0o666 & ~umask


# Rows: no damaged one is taken for whole ---------------------------------------------------------

VALUES = st.recursive(
    st.floats() | st.integers() | st.booleans() | st.none() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
ANY_ROWS = st.lists(st.builds(lambda step, row: {**row, "step": step}, st.integers(),
                          st.dictionaries(st.text(), VALUES, max_size=4)), max_size=4)  # fmt: skip
ON_ONE_FOLDER = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@ON_ONE_FOLDER
@given(rows=ANY_ROWS)
def test_rows_are_read_as_they_were_appended(tmp_path, rows):
    (tmp_path / "metrics.jsonl").unlink(missing_ok=True)
    RunFolder(tmp_path).append("metrics.jsonl", rows)
    assert repr(RunFolder(tmp_path).metrics()) == repr(rows)  # NaN and -0.0, too


@ON_ONE_FOLDER
@given(line=st.binary(max_size=30).filter(lambda line: b"\n" not in line))
@example(b'{"step": 1, "x": "\\ud800"}')  # half of a character
@example(b'\xef\xbb\xbf{"step": 1}')  # a mark of byte order
@example(b'{"step": 1}{"step": 2}')
@example(b'{"step": 1, "step": 2}')
@example(b'{"step": true}')
@example(b'{"step": 1e2}')
@example(b'{"step": 1, "x": ' + b"9" * 400 + b"}")
@example(b'{"step": 1, "x": 1e999}')
@example(b'{"step": 1, "x": ' + b"[" * 3000 + b"]" * 3000 + b"}")
@example(b'{"step": 1, "x": "\x01"}')
@example(b"")
def test_a_line_is_whole_if_json_says_so(tmp_path, line):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b'{"step": 0}\n' + line + b"\n" + b'{"step": 9}\n')
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if isinstance(row, dict) and type(row.get("step")) is int:
        assert repr(read_rows(file)[1]) == repr((line, row))
    else:
        with pytest.raises(UserError, match="line 2 is damaged"):
            read_rows(file)
