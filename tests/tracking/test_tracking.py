"""What these tests lock: a run tracked in W&B can be found, compared and uploaded later.

1. Schedule, group and tags name what tells runs apart.
2. An offline run holds config, group, job type, tags, every metric at its step, and the picture.
3. A resumed run is the same run of W&B; the upload command names the folder of each start.
4. Without tracking nothing is written.
"""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import wandb
from conftest import resolve
from matplotlib.figure import Figure

from rec_experiments.tracking.trackers import NoTracking, Wandb, group_name, labels, schedule_name

ROWS = [
    {"step": 0, "eval/accuracy": 0.25},
    {"step": 1, "train/reward": 0.5, "train/staleness": 0},
    {"step": 2, "train/reward": 0.75, "eval/accuracy": 0.5},
]


@pytest.fixture
def no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An account without a key of W&B, and no way to reach the network."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / ".netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "home" / "wandb"))


def track(folder: Path, rows: list[dict], picture: Path | None = None) -> list[str]:
    folder.mkdir(exist_ok=True)
    config = resolve("algo=rec_ring", "sync=offset10", "seed=3")
    tracking = Wandb(project="lab", entity=None, mode=None, tags=["mine"])
    tracker = tracking.start("ring", group_name(config), str(folder), config)
    for row in rows:
        tracker.log(row)
    lines = tracker.finish(picture)
    wandb.teardown()  # as the end of the process does: the files are whole only then
    return lines


def records(folder: Path) -> Iterator[tuple[str, Any]]:
    """Kind and content of the records that an offline run keeps for `wandb sync`.

    The file is a LevelDB log: 7 bytes, then blocks of 32 KiB of records (checksum, length, part of
    a record: 1 all, 2 first, 3 middle, 4 last).
    """
    for file in folder.glob("wandb/offline-run-*/*.wandb"):
        yield from _records_of(file.read_bytes())


def _records_of(data: bytes) -> Iterator[tuple[str, Any]]:
    from wandb.proto.wandb_internal_pb2 import Record

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


@pytest.mark.parametrize(
    ("interval", "offset", "name"),
    [
        (1, 0, "on-policy"),
        (20, 0, "interval 20"),
        (1, 10, "offset 10"),
        (4, 2, "interval 4, offset 2"),
        (None, 0, "offline"),
    ],
)
def test_schedule_in_words(interval, offset, name):
    assert schedule_name({"interval": interval, "offset": offset}) == name


def test_group_is_shared_by_methods_and_seeds_alone():
    one = resolve("algo=grpo", "sync=interval20", "seed=1")
    other = resolve("algo=reinforce", "sync=interval20", "seed=2")
    offline = resolve("algo=grpo", "sync=offline", "seed=1")
    assert group_name(one) == group_name(other) == "Reduction, interval 20"
    assert group_name(offline) == "Reduction, offline"
    assert labels(one) == ["GRPO", "interval 20", "Reduction"]


@pytest.mark.usefixtures("no_key")
def test_offline_run_holds_all_that_a_comparison_needs(tmp_path):
    folder, picture = tmp_path / "a run", tmp_path / "curves.png"
    Figure().savefig(picture)
    (line,) = track(folder, ROWS, picture)

    found = list(records(folder))
    (run,) = [content for kind, content in found if kind == "run"]
    assert (run.project, run.display_name, run.run_group) == (
        "lab",
        "ring",
        "Reduction, offset 10",
    )
    assert run.job_type == "train"
    assert set(run.tags) == {"REC-Ring-NoIS", "offset 10", "Reduction", "mine"}
    config = {each.key: json.loads(each.value_json) for each in run.config.update}
    expected = resolve("algo=rec_ring", "sync=offset10", "seed=3")
    assert {key: config[key] for key in expected} == expected

    history: dict[int, dict] = {}
    for kind, content in found:
        if kind == "history":
            for item in content.item:
                key = item.key or "/".join(item.nested_key)
                history.setdefault(content.step.num, {})[key] = json.loads(item.value_json)
    for row in ROWS:
        logged = history[row["step"]]
        assert {k: logged[k] for k in row if k != "step"} == {
            k: v for k, v in row.items() if k != "step"
        }
    (image,) = folder.glob("wandb/offline-run-*/files/media/images/curves_*.png")
    assert image.read_bytes() == picture.read_bytes()

    command = shlex.split(line)
    assert command[-3:-1] == ["wandb", "sync"]
    assert len(list(Path("/").glob(command[-1].lstrip("/")))) == 1


@pytest.mark.usefixtures("no_key")
def test_resumed_run_keeps_its_identity(tmp_path):
    folder = tmp_path / "run"
    track(folder, ROWS[:2])
    first = (folder / "wandb_id").read_text()
    (line,) = track(folder, ROWS[2:])
    starts = set(Path("/").glob(shlex.split(line)[-1].lstrip("/")))
    assert starts == set(folder.glob("wandb/offline-run-*"))
    assert len(starts) == 2
    assert {content.run_id for kind, content in records(folder) if kind == "run"} == {first}


def test_no_tracking_writes_nothing(tmp_path):
    tracker = NoTracking().start("name", "group", str(tmp_path), {})
    tracker.log(ROWS[0])
    assert tracker.finish(tmp_path / "curves.png") == []
    assert not list(tmp_path.iterdir())
