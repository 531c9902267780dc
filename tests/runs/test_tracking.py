"""Trackers: every metric at its step; a killed and resumed run is one run; a finished one is sent
once; an offline run of W&B can be found, compared and uploaded later.
"""

import json
import math
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from conftest import resolve
from matplotlib.figure import Figure

from rec_experiments.common.errors import UserError
from rec_experiments.runs.trackers import (
    RECORD,
    NoTracking,
    TensorBoard,
    Trackio,
    Wandb,
    group_name,
    lasting_id,
    schedule_name,
    tags,
    track_finished,
)

ROWS = [
    {"step": 0, "eval/accuracy": 0.25},
    {"step": 1, "train/reward": 0.5, "train/staleness": 0},
    {"step": 2, "train/reward": 0.75, "eval/accuracy": 0.5},
]
AGAIN = [{"step": 2, "train/reward": 0.75}, {"step": 3, "train/reward": 1.0}]  # resumed after 1


@pytest.fixture(scope="module")
def config() -> dict:
    return resolve("algo=rec_ring", "sync=offset10", "seed=3")


@pytest.fixture
def folder(tmp_path) -> Path:
    """A run folder of a run that continues after step 1."""
    found = tmp_path / "a run"
    found.mkdir()
    (found / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS[:2]))
    return found


def track(tracking, folder: Path, rows: list[dict], config: dict, picture=None) -> list[str]:
    """One start of a run."""
    tracker = tracking.start("ring", folder, config)
    for row in rows:
        tracker.log(row)
    return tracker.finish(picture)


def test_schedule_in_words():
    names = {
        (1, 0): "on-policy", (20, 0): "interval 20", (1, 10): "offset 10",
        (4, 2): "interval 4, offset 2", (None, 0): "offline",
    }  # fmt: skip
    for (interval, offset), name in names.items():
        assert schedule_name({"interval": interval, "offset": offset}) == name


def test_group_is_shared_by_methods_and_seeds_alone(config):
    other = resolve("algo=reinforce", "sync=offset10", "seed=2")
    assert group_name(config) == group_name(other) == "Reduction, offset 10"
    assert tags(config, ["mine", "offset 10"]) == [
        "REC-Ring-NoIS", "offset 10", "Reduction", "mine"
    ]  # fmt: skip


def test_no_tracking_writes_nothing(tmp_path, config):
    assert track(NoTracking(), tmp_path, ROWS, {**config}, tmp_path / "curves.png") == []
    assert track_finished(NoTracking(), "ring", tmp_path, ROWS, config) == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["trackio", "tensorboard"])
def test_a_missing_package_is_one_line(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, name, None)  # as where it is not installed
    tracking = Trackio(project="lab", tags=[]) if name == "trackio" else TensorBoard()
    with pytest.raises(UserError, match=f"{name} is not installed; .* its extra {name}"):
        tracking.start("ring", tmp_path, {})


# W&B ----------------------------------------------------------------------------------------------


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wandb]:
    """An account without a key of W&B, and no way to reach the network."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / ".netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home" / "wandb"))
    yield Wandb(project="lab", entity=None, mode=None, tags=["mine"])
    wandb.teardown()


def records(folder: Path) -> Iterator[tuple[str, Any]]:
    """Kind and content of the records that an offline run keeps for `wandb sync`.

    The file is a LevelDB log: 7 bytes, then blocks of 32 KiB of records (checksum, length, part of
    a record: 1 all, 2 first, 3 middle, 4 last).
    """
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # as the end of the process does: the files are whole only then
    for file in folder.glob("wandb/offline-run-*/*.wandb"):
        data = file.read_bytes()
        place, whole = 7, b""
        while place < len(data):
            left = 32768 - place % 32768
            if left < 7:
                place += left
                continue
            length, part = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
            whole += data[place + 7 : place + 7 + length]
            place += 7 + length
            if part in (1, 4):
                record = Record.FromString(whole)
                whole = b""
                kind = record.WhichOneof("record_type")
                yield kind, getattr(record, kind)


def test_offline_run_holds_all_that_a_comparison_needs(folder, lab, config, tmp_path):
    picture = tmp_path / "curves.png"
    Figure().savefig(picture)
    (line,) = track(lab, folder, ROWS, config, picture)

    found = list(records(folder))
    (run,) = [content for kind, content in found if kind == "run"]
    assert (run.project, run.display_name, run.run_group, run.job_type) == (
        "lab", "ring", "Reduction, offset 10", "train",
    )  # fmt: skip
    assert set(run.tags) == {"REC-Ring-NoIS", "offset 10", "Reduction", "mine"}
    stored = {each.key: json.loads(each.value_json) for each in run.config.update}
    assert {key: stored[key] for key in config} == config
    history: dict[int, dict] = {}
    for kind, content in found:
        if kind == "history":
            for item in content.item:
                key = item.key or "/".join(item.nested_key)
                history.setdefault(content.step.num, {})[key] = json.loads(item.value_json)
    for row in ROWS:
        assert history[row["step"]].items() >= {k: v for k, v in row.items() if k != "step"}.items()
    (image,) = folder.glob("wandb/offline-run-*/files/media/images/curves_*.png")
    assert image.read_bytes() == picture.read_bytes()
    assert shlex.split(line)[-3:-1] == ["wandb", "sync"]


def test_resumed_run_keeps_its_identity(folder, lab, config):
    track(lab, folder, ROWS[:2], config)
    (line,) = track(lab, folder, ROWS[2:], config)
    ids = {content.run_id for kind, content in records(folder) if kind == "run"}
    starts = set(Path("/").glob(shlex.split(line)[-1].lstrip("/")))
    assert starts == set(folder.glob("wandb/offline-run-*"))
    assert len(starts) == 2
    assert ids == {lasting_id(folder)}


def test_a_name_that_wandb_refuses_is_one_line(folder, lab, config):
    lab.project = "a/b"
    with pytest.raises(UserError, match="tracking=wandb: refuses the run"):
        track(lab, folder, ROWS, config)


# trackio ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trackio(tmp_path_factory):
    """The package, which reads where it writes when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))
        yield pytest.importorskip("trackio")


def trackio_logs(trackio, project: str) -> dict[str, list[dict]]:
    """The rows of each run of a project, without times."""
    logs = {
        name: trackio.SQLiteStorage.get_logs(project, name)
        for name in trackio.SQLiteStorage.get_runs(project)
    }
    known = {"step", *(key for row in ROWS for key in row)}
    return {
        name: [{key: log[key] for key in known & log.keys()} for log in rows]
        for name, rows in logs.items()
    }


@pytest.mark.parametrize("seen", [2, 0], ids=["all was sent", "killed before it was sent"])
def test_trackio_has_each_step_of_a_resumed_run_once(seen, folder, trackio, config):
    tracking = Trackio(project=f"resumed{seen}", tags=["mine"])
    track(tracking, folder, ROWS[: 1 + seen], config)
    assert track(tracking, folder, AGAIN, config) == [
        f"dashboard  trackio show --project resumed{seen}"
    ]
    [(name, logs)] = trackio_logs(trackio, f"resumed{seen}").items()
    assert name == f"ring · {lasting_id(folder)}"
    last = ROWS[2] if seen else AGAIN[0]
    assert sorted(logs, key=lambda log: log["step"]) == [*ROWS[:2], last, AGAIN[1]]
    [run] = trackio.Api().runs(f"resumed{seen}")
    assert run.config["algo"] == config["algo"]
    assert run.config["tags"] == tags(config, ["mine"])


def test_trackio_gets_the_rows_that_it_lost_and_the_picture_at_the_end(folder, trackio, config):
    Figure().savefig(folder / "curves.png")
    track(Trackio(project="lost", tags=[]), folder, [], config, folder / "curves.png")
    [logs] = trackio_logs(trackio, "lost").values()
    assert sorted(log["step"] for log in logs) == [0, 1, 1]


def test_steps_that_trackio_has_not_stored_are_an_error(folder, trackio, config, monkeypatch):
    monkeypatch.setattr("rec_experiments.runs.trackers._TrackioRun.stored", lambda self: -1)
    tracker = Trackio(project="unstored", tags=[]).start("ring", folder, config)
    tracker.log(ROWS[0])
    with pytest.raises(UserError, match=r"unstored: trackio has not stored all"):
        tracker.finish()
    assert tracker.finish(failed=True) == []


def test_a_finished_run_is_sent_once_and_namesakes_are_told_apart(tmp_path, trackio, config):
    tracking = Trackio(project="finished", tags=[])
    folders = [tmp_path / place / "ring" for place in ("one", "other")]
    for each in folders:
        each.mkdir(parents=True)
    said = [track_finished(tracking, "ring", each, ROWS, config) for each in folders]
    (folders[0] / RECORD).unlink()  # the run is repeated
    said += [track_finished(tracking, "ring", folders[0], ROWS, config) for _ in range(2)]
    assert [bool(lines) for lines in said] == [True, True, True, False]
    logs = trackio_logs(trackio, "finished").values()
    assert [[log["step"] for log in rows] for rows in logs] == [[0, 1, 2]] * 3


# TensorBoard --------------------------------------------------------------------------------------


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder / "tensorboard")).Reload()
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def test_tensorboard_hides_what_a_resumed_run_repeats(folder, config):
    pytest.importorskip("tensorboard")
    for rows in (ROWS, AGAIN):
        lines = track(TensorBoard(), folder, rows, config)
    assert events(folder)["train/reward"] == [(1, 0.5), (2, 0.75), (3, 1.0)]
    assert events(folder)["eval/accuracy"] == [(0, 0.25)]
    assert lines == [f"curves    tensorboard --logdir {folder.parent}"]


def test_tensorboard_gets_the_earlier_steps_of_a_run_that_was_not_tracked(folder, config):
    pytest.importorskip("tensorboard")
    track(TensorBoard(), folder, AGAIN, config)
    assert [step for step, _ in events(folder)["train/reward"]] == [1, 2, 3]


def test_tensorboard_gets_a_finished_run_once(folder, config):
    pytest.importorskip("tensorboard")
    begun = TensorBoard().start("ring", folder, config)
    begun.log(ROWS[0])  # a start that was tracked, before others that were not
    begun.finish(failed=True)
    assert track_finished(TensorBoard(), "ring", folder, ROWS, config)
    assert not track_finished(TensorBoard(), "ring", folder, ROWS, config)
    assert events(folder)["eval/accuracy"] == [(0, 0.25), (2, 0.5)]
    assert math.isclose(events(folder)["train/reward"][-1][1], 0.75)
