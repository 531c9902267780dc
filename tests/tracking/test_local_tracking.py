"""trackio and TensorBoard: every metric at its step; a killed and resumed run is one run, once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import experiment, resolve

from rec_experiments.errors import UserError
from rec_experiments.runs.display import draw_curves
from rec_experiments.tracking.local import TensorBoard
from rec_experiments.tracking.trackers import ID_FILE, NoTracking, track_finished

ROWS = [
    {"step": 0, "eval/accuracy": 0.25},
    {"step": 1, "train/reward": 0.5},
    {"step": 2, "train/reward": 0.75},
]
AGAIN = [{"step": 2, "train/reward": 0.75}, {"step": 3, "train/reward": 1.0}]  # resumed after 1

# trackio reads where it writes when it is imported, so it has a process of its own.
TRACK = """
import json, sys
import trackio
from rec_experiments.tracking.local import Trackio

config, folder, starts = json.load(sys.stdin)
for rows in starts:
    tracking = Trackio(project="lab", tags=["mine"])
    tracker = tracking.start("ring", "g", folder, config)
    for row in rows:
        tracker.log(row)
    lines = tracker.finish()
logs = [
    {key: log[key] for key in ("step", "train/reward", "eval/accuracy") if key in log}
    for log in trackio.SQLiteStorage.get_logs("lab", "ring")
]
runs = trackio.Api().runs("lab")
print(json.dumps([logs, [(run.name, run.config) for run in runs], lines]))
"""


def write_rows(folder: Path) -> None:
    """Of a run that goes on after step 1."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row) + "\n" for row in ROWS[:2]]
    (folder / "metrics.jsonl").write_text("".join(lines))


@pytest.mark.parametrize("seen", [2, 0], ids=["all was sent", "killed before it was sent"])
def test_trackio_has_each_step_of_a_resumed_run_once(seen, tmp_path):
    pytest.importorskip("trackio")
    write_rows(tmp_path)
    config = resolve("algo=rec_ring", "sync=offset10", "seed=3")
    done = subprocess.run(
        [sys.executable, "-c", TRACK],
        input=json.dumps([config, str(tmp_path), [ROWS[: 1 + seen], AGAIN]]),
        env={**os.environ, "TRACKIO_DIR": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    logs, [[name, about]], lines = json.loads(done.stdout.splitlines()[0])
    assert sorted(logs, key=lambda log: log["step"]) == [*ROWS, AGAIN[1]]
    assert name == "ring"
    assert about["algo"] == config["algo"]
    assert {"REC-Ring-NoIS", "offset 10", "Reduction", "mine"} <= set(about["tags"])
    assert lines == ["dashboard  trackio show --project lab"]


def test_steps_that_trackio_has_not_stored_are_an_error(tmp_path):
    """trackio itself reports none."""
    pytest.importorskip("trackio")
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-c", TRACK],
        input=json.dumps([resolve("algo=rec_ring"), str(tmp_path), [ROWS]]),
        env={**os.environ, "TRACKIO_DIR": str(tmp_path / "file")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode
    assert "UserError: tracking.project=lab: trackio has not stored all steps" in done.stderr


def test_tensorboard_hides_what_a_resumed_run_does_anew(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "runs" / "ring"
    for rows in (ROWS, AGAIN):
        tracker = TensorBoard().start("ring", "g", str(folder), {})
        for row in rows:
            tracker.log(row)
        lines = tracker.finish()
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    rewards = [(event.step, event.value) for event in events.Scalars("train/reward")]
    assert rewards == [(1, 0.5), (2, 0.75), (3, 1.0)]
    assert [event.step for event in events.Scalars("eval/accuracy")] == [0]
    assert lines == [f"curves    tensorboard --logdir {tmp_path / 'runs'}"]


def test_tensorboard_has_the_earlier_steps_of_a_run_that_was_not_tracked(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "runs" / "ring"
    write_rows(folder)
    tracker = TensorBoard().start("ring", "g", str(folder), {})
    for row in AGAIN:
        tracker.log(row)
    tracker.finish()
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("train/reward")] == [1, 2, 3]
    assert [event.step for event in events.Scalars("eval/accuracy")] == [0]


PICTURE = TRACK.replace("tracker.finish()", "tracker.finish(Path(folder, 'curves.png'))").replace(
    "import json, sys", "import json, sys\nfrom pathlib import Path"
)


def test_the_picture_stands_at_the_last_step_in_trackio(tmp_path):
    pytest.importorskip("trackio")
    draw_curves(ROWS, "ring", tmp_path / "curves.png")
    config = resolve("algo=rec_ring")
    done = subprocess.run(
        [sys.executable, "-c", PICTURE],
        input=json.dumps([config, str(tmp_path), [ROWS]]),
        env={**os.environ, "TRACKIO_DIR": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    logs = json.loads(done.stdout.splitlines()[0])[0]
    assert sorted(log["step"] for log in logs) == [0, 1, 2, 2]


# Runs of one name: a folder, another one, the first made again, and none of them once more.
NAMESAKES = """
import json, sys
from pathlib import Path
import trackio
from rec_experiments.tracking.local import Trackio
from rec_experiments.tracking.trackers import ID_FILE, track_finished

config, folders, rows = json.load(sys.stdin)
tracking = Trackio(project="lab", tags=[])
said = [track_finished(tracking, "ring", Path(each), rows, config) for each in folders]
Path(folders[-1], ID_FILE).unlink()
said += [track_finished(tracking, "ring", Path(folders[-1]), rows, config) for _ in range(2)]
records = trackio.SQLiteStorage.get_run_records("lab")
found = [trackio.SQLiteStorage.get_logs("lab", "ring", run_id=each["id"]) for each in records]
print(json.dumps([said, [[log["step"] for log in logs] for logs in found]]))
"""


def test_trackio_is_told_of_finished_runs_once_and_tells_namesakes_apart(tmp_path):
    pytest.importorskip("trackio")
    folders = [str(tmp_path / place / "ring") for place in ("one", "other")]
    for folder in folders:
        Path(folder).mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-c", NAMESAKES],
        input=json.dumps([resolve("algo=rec_ring"), folders, ROWS]),
        env={**os.environ, "TRACKIO_DIR": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    said, steps = json.loads(done.stdout.splitlines()[0])
    assert [bool(lines) for lines in said] == [True, True, True, False]
    assert steps == [[0, 1, 2]] * 3


def test_tensorboard_is_told_of_a_finished_run_once(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder, tracking = tmp_path / "ring", TensorBoard()
    config = resolve("algo=rec_ring")
    begun = tracking.start("ring", "g", str(folder), config)
    begun.log(ROWS[0])  # a start that was tracked, before others that were not
    begun.finish(failed=True)
    assert track_finished(tracking, "ring", folder, ROWS, config)
    assert not track_finished(tracking, "ring", folder, ROWS, config)
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("eval/accuracy")] == [0]
    assert [event.step for event in events.Scalars("train/reward")] == [1, 2]


def test_who_cannot_tell_is_not_told(tmp_path):
    config = resolve("tracking=none")
    assert track_finished(NoTracking(), "ring", tmp_path, ROWS, config) == []
    assert not (tmp_path / ID_FILE).exists()


@pytest.mark.parametrize("name", ["trackio", "tensorboard"])
def test_a_missing_package_is_one_line(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)  # as where it is not installed
    tracking = experiment(f"tracking={name}").tracking
    with pytest.raises(
        UserError, match=f"tracking={name}: {name} is not installed; .* its extra {name}"
    ):
        tracking.start("ring", "g", str(Path()), {})
