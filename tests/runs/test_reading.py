"""What reads run folders reads files, and nothing that it would wait for: a pipe, a device, a
folder in the place of a file is damage like any other."""

import contextlib
import os
import threading
from pathlib import Path

import pytest
from fabricated import write_run

from rec_experiments.analysis.results.runs import read_or_leave_out
from rec_experiments.analysis.watch.views import Watched
from rec_experiments.errors import UserError
from rec_experiments.files import is_whole, read_whole, write_with_digest
from rec_experiments.runs.reading import REMEDIES, last_row, read_object, read_rows
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.sweeps.state import _last_words


def pipe(path: Path, content: bytes = b"{}\n") -> None:
    """A pipe in the place of a file, and somebody who writes to it as soon as it is opened."""

    def write() -> None:
        with contextlib.suppress(OSError), open(path, "wb") as file:
            file.write(content)

    path.unlink(missing_ok=True)
    os.mkfifo(path)
    threading.Thread(target=write, daemon=True).start()


def device(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(os.devnull)


@pytest.fixture
def folder(tmp_path) -> Path:
    path = tmp_path / "run"
    write_run(path, [{"step": 0}, {"step": 1}])
    return path


@pytest.mark.parametrize("replace", [pipe, device])
@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("config.yaml", read_object), ("status.json", read_object),
        ("provenance.json", read_object), ("metrics.jsonl", read_rows),
        ("samples.jsonl", read_rows), ("metrics.jsonl", lambda file: last_row(file, 100)),
    ],
)  # fmt: skip
def test_what_is_no_file_is_refused_in_one_line(name, read, replace, folder):
    replace(folder / name)
    with pytest.raises(UserError) as refused:
        read(folder / name)
    assert str(refused.value) == (
        f"run folder {folder}: {name} cannot be read (it is no regular file); {REMEDIES[name]}"
    )


@pytest.mark.parametrize("name", ["config.yaml", "status.json", "metrics.jsonl"])
def test_a_run_with_a_pipe_is_left_out_and_named(name, folder, capsys):
    pipe(folder / name)
    views, left_out = Watched([]).look([folder])
    assert views == []
    assert f"{name} cannot be read (it is no regular file)" in left_out[0]
    if name != "config.yaml":
        run = read_or_leave_out("arm", "", 0, folder)
        assert run.state == "unreadable"
        assert f"left out: run folder {folder}: {name} cannot be read" in capsys.readouterr().err


def test_a_pipe_as_lock_holds_nothing_and_starts_nothing(folder):
    pipe(folder / ".lock")
    assert not RunFolder(folder).is_held()
    with pytest.raises(UserError, match=r"run_dir=.*: cannot be written"):
        RunFolder(folder).start({}, {})


def test_a_pipe_as_log_says_nothing(folder):
    pipe(folder / "log.txt", b"error: as if\n")
    assert _last_words(folder, "") == "ended without a result"


def test_a_pipe_is_not_whole(tmp_path):
    write_with_digest(tmp_path / "state.pt", b"state")
    pipe(tmp_path / "state.pt", b"state")
    assert read_whole(tmp_path / "state.pt") is None
    pipe(tmp_path / "state.pt", b"state")
    assert not is_whole(tmp_path / "state.pt")
