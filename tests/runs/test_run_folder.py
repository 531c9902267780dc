"""What these tests lock: a run folder trusts no file that it did not write.

1. A folder that holds anything and is not a run's is refused, and nothing in it is touched.
2. Only names that a run writes are states; a state knows its run, and is refused under another.
3. A damaged file is one line that names it; a torn last line is cut off.
4. No link that somebody lays is followed, and what a killed process left is removed.
"""

import json
import os
import stat
from pathlib import Path

import pytest
import torch
import yaml
from conftest import SMALL, refused, resolve, run

from rec_experiments.errors import UserError
from rec_experiments.files import read_whole, write_atomic, write_with_digest
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
    folder._lock.close()
    found = RunFolder(folder.path)
    found.check(config)
    found.start(config, {})
    return found


def test_nothing_is_written_into_a_folder_that_took_the_place_of_the_runs(folder):
    folder.path.rename(folder.path.with_name("renamed"))
    for there in (False, True):
        if there:
            folder.path.mkdir()
        for write in (
            lambda: folder.append("metrics.jsonl", [{"step": 1}]),
            lambda: folder.save_checkpoint(1, state(1)),
            lambda: folder.set_status("failed"),
        ):
            with pytest.raises(UserError, match="was removed or replaced"):
                write()
    assert not any(folder.path.iterdir())


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
    "a configuration that is a list": {"config.yaml": "[1, 2]\n"},
    "a configuration that is garbage": {"config.yaml": "{oops"},
    "anything": {"thesis.tex": "years of work"},
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
    with pytest.raises(UserError, match=r"holds checkpoints, .* no config\.yaml; .* restore"):
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


@pytest.mark.parametrize(
    "text", ["", "{oops", "[1]", "\x00\x00", "[" * 100_000, '"done"', "\udcff\udcfe"]
)
@pytest.mark.parametrize("name", ["status.json", "provenance.json", "config.yaml"])
def test_a_damaged_file_is_one_line_that_names_it(name, text, folder, config):
    if (name, text) == ("config.yaml", "[" * 100_000):
        pytest.skip("minutes of a YAML reader")
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


@pytest.mark.parametrize("torn", ["", '{"st', '{"step": 9, "lo\n', "\x00\x00\n", '{"loss": 1}\n'])
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
    folder.append(name, ROWS[:2])
    with open(folder.path / name, "a") as file:
        file.write("garbage\n")
    folder.append(name, ROWS[2:])
    with pytest.raises(UserError, match=rf"{name} cannot be read \(line 3 is damaged\); "):
        folder.rewind(3)
    assert json.loads((folder.path / name).read_text().splitlines()[1]) == ROWS[1]


# Files -------------------------------------------------------------------------------------------


def test_a_link_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    for name in (".status.json.partial", "status.json"):
        (tmp_path / name).symlink_to(tmp_path / "theirs")
    write_atomic(tmp_path / "status.json", b"ours")
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert (tmp_path / "status.json").read_bytes() == b"ours"
    assert not (tmp_path / "status.json").is_symlink()


def test_a_name_that_somebody_guesses_is_never_written_through(tmp_path, monkeypatch):
    (tmp_path / "theirs").write_text("theirs")
    monkeypatch.setattr("secrets.token_hex", lambda n: "guessed")
    (tmp_path / ".guessed.partial").symlink_to(tmp_path / "theirs")
    with pytest.raises(FileExistsError):
        write_atomic(tmp_path / "out", b"ours")
    assert (tmp_path / "theirs").read_text() == "theirs"


def test_the_lock_is_no_link(tmp_path, config):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "theirs")
    with pytest.raises(UserError, match="cannot be written"):
        RunFolder(tmp_path / "run").start(config, {})
    assert (tmp_path / "theirs").read_text() == "theirs"


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


def test_a_digest_tells_damage(tmp_path):
    file = tmp_path / "weights.pt"
    assert read_whole(file) is None
    write_with_digest(file, b"weights")
    assert read_whole(file) == b"weights"
    file.write_bytes(b"weight")
    assert read_whole(file) is None
    write_with_digest(file, b"weights")
    (tmp_path / "weights.sha256").unlink()
    assert read_whole(file) is None
