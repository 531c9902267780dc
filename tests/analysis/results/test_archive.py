"""An archive of runs: what it keeps of a run folder, and that commands read it like folders.

Runs of the archives in docs/results have the names that today's configuration gives them.
"""

import io
import json
import lzma
from pathlib import Path

import pandas
import pytest
from conftest import resolve
from fabricated import rows_of, write_run

from rec_experiments.analysis.results import archive
from rec_experiments.cli.main import call_command
from rec_experiments.config.identity import run_path
from rec_experiments.errors import UserError
from rec_experiments.files import ARCHIVE


@pytest.fixture
def folder(tmp_path):
    """Two finished runs, one that goes on."""
    for seed in range(3):
        path = write_run(
            tmp_path / f"run{seed}", rows_of("GRPO", seed), "running" if seed == 2 else "done"
        )
        command = [
            "python",
            "-m",
            "rec_experiments",
            "algo=grpo",
            f"seed={seed}",
            "output_dir=/home/me",
        ]
        (path / "provenance.json").write_text(json.dumps({"command": command, "release": 12}))
    return tmp_path


def written(folder, *places):
    content, runs = archive.archived(places or [folder])
    file = folder / "all.csv.xz"
    file.write_bytes(content)
    return file, runs


def test_archive_has_finished_runs_at_their_evaluations(folder):
    file, runs = written(folder)
    table = pandas.read_csv(file)
    assert runs == 2
    assert list(table["run"].unique()) == ["run0", "run1"]
    assert set(table["step"]) == {0, 10, 20, 30, 40}
    assert set(table["overrides"]) == {"algo=grpo seed=0", "algo=grpo seed=1"}
    assert set(table["release"]) == {12}


def test_archived_run_has_the_evaluations_and_means_of_its_folder(folder):
    file, _ = written(folder)
    run = archive.read_archived("GRPO", "offline", 1, file / "run1", 40, 10)
    rows = rows_of("GRPO", 1)
    assert run.done
    assert run.releases == {12}
    assert [row["step"] for row in run.rows] == [0, 10, 20, 30, 40]
    for before, row in zip(run.rows, run.rows[1:], strict=False):
        within = [
            each["train/reward"] for each in rows if before["step"] < each["step"] <= row["step"]
        ]
        assert row["train/reward"] == pytest.approx(sum(within) / 10, rel=1e-3)
        assert row["eval/accuracy"] == pytest.approx(rows[row["step"]]["eval/accuracy"], rel=1e-3)
    assert "train/reward" not in run.rows[0]


def test_absent_run_is_missing(folder):
    file, _ = written(folder)
    assert archive.read_archived("GRPO", "offline", 1, file / "run7", 40, 10).state == "missing"


def test_archives_can_be_joined(folder):
    file, _ = written(folder)
    content, runs = archive.archived([file, folder])
    assert runs == 2
    assert content == file.read_bytes()


def test_archive_has_a_column_for_each_metric_that_some_run_has(folder):
    plain, _ = written(folder)
    assert "train/mismatch" not in pandas.read_csv(plain)
    rows = [{**row, "train/mismatch": 0.01 * row["step"]} for row in rows_of("GRPO", 3)]
    path = write_run(folder / "more" / "run3", rows, "done")
    (path / "provenance.json").write_text(json.dumps({"command": [], "release": 12}))
    joined, runs = written(folder, plain, folder / "more")
    assert runs == 3
    mismatch = pandas.read_csv(joined).set_index(["run", "step"])["train/mismatch"]
    assert mismatch["run3", 20] == pytest.approx(0.01 * (11 + 20) / 2, rel=1e-3)
    assert mismatch["run1"].isna().all()
    last = archive.read_archived("GRPO", "offline", 3, joined / "run3", 40, 10).rows[-1]
    assert last["train/mismatch"] == pytest.approx(0.355, rel=1e-3)
    last = archive.read_archived("GRPO", "", 1, joined / "run1", 40, 10).rows[-1]
    assert "train/mismatch" not in last


def test_archive_is_the_same_bytes_each_time(folder):
    assert archive.archived([folder])[0] == archive.archived([folder])[0]


def test_file_of_another_kind_is_refused(folder):
    file = folder / "other.csv.xz"
    for content in (b"no xz", lzma.compress(b"a,b\n1,2\n")):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"other\.csv\.xz: is no archive of runs"):
            archive.archived([file])
        file.unlink()


def changed(lines, number, column, value):
    """The lines of an archive with one value replaced."""
    cells = lines[number].split(",")
    cells[lines[0].split(",").index(column)] = value
    return [*lines[:number], ",".join(cells), *lines[number + 1 :]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: changed(lines, 2, "eval/accuracy", "abc"), "could not convert string"),
        (lambda lines: changed(lines, 2, "eval/accuracy", "nan"), "accuracy is nan at step 10"),
        (lambda lines: changed(lines, 2, "eval/accuracy", ""), "accuracy is nan at step 10"),
        (lambda lines: changed(lines, 2, "eval/accuracy", "7.5"), "accuracy is 7.5 at step 10"),
        (lambda lines: changed(lines, 2, "step", "x"), "invalid literal"),
        (lambda lines: changed(lines, 2, "release", "eleven"), "invalid literal"),
        (lambda lines: [*lines[:2], lines[2] + ",1", *lines[3:]], "other columns than the head"),
        (lambda lines: [*lines[:2], "run0", *lines[3:]], "other columns than the head"),
        (lambda lines: [lines[0], *lines[2:]], "run0: its steps do not rise from 0"),
        (lambda lines: [*lines, '"' + "x" * 200_000], "field larger than field limit"),
        (lambda lines: [*lines, lines[5]], "run0: its steps do not rise from 0"),
        (lambda lines: [lines[0], *lines[:0:-1]], "its steps do not rise from 0"),
    ],
)
def test_damaged_archive_is_refused_in_one_line(folder, change, message):
    file, _ = written(folder)
    lines = lzma.decompress(file.read_bytes()).decode().splitlines()
    file.write_bytes(lzma.compress("\n".join(change(lines)).encode()))
    with pytest.raises(UserError, match=message) as caught:
        archive.archived([file])
    assert str(caught.value).startswith(f"{file}: is no archive of runs (")


def test_order_of_rows_of_different_runs_does_not_matter(folder):
    file, _ = written(folder)
    head, *lines = lzma.decompress(file.read_bytes()).decode().splitlines()
    by_step = sorted(lines, key=lambda line: int(line.split(",")[3]))
    mixed = folder / f"mixed{ARCHIVE}"
    mixed.write_bytes(lzma.compress("\n".join([head, *by_step]).encode()))
    assert archive.archived([mixed])[0] == file.read_bytes()


@pytest.mark.parametrize(("steps", "eval_every", "absent"), [(150, 10, 50), (40, 4, 4)])
def test_archived_run_must_have_all_evaluations(folder, capsys, steps, eval_every, absent):
    file, _ = written(folder)
    run = archive.read_archived("GRPO", "", 1, file / "run1", steps, eval_every)
    assert (run.state, run.rows) == ("unreadable", [])
    assert f"run1: it has no evaluation at step {absent}" in capsys.readouterr().err


def test_copies_with_other_numbers_are_named(folder, capsys):
    file, _ = written(folder)
    lines = lzma.decompress(file.read_bytes()).decode().splitlines()
    other = folder / f"other{ARCHIVE}"
    other.write_bytes(
        lzma.compress("\n".join(changed(lines, 2, "eval/accuracy", "0.9876")).encode())
    )
    assert archive.archived([file, other])[0] == file.read_bytes()
    assert "run0: an earlier copy has other numbers" in capsys.readouterr().err


def test_copies_with_the_same_numbers_are_not(folder, capsys):
    """An archive has no columns for the metrics that none of its runs has; a folder's rows do."""
    file, _ = written(folder)
    assert archive.archived([file, folder])[0] == file.read_bytes()
    assert capsys.readouterr().err == ""


def test_command_writes_an_archive(folder, capsys):
    file = folder / f"out{ARCHIVE}"
    call_command("archive", f"--runs={folder}", f"--out={file}")
    assert "2 finished runs" in capsys.readouterr().out
    table = pandas.read_csv(io.BytesIO(lzma.decompress(file.read_bytes())))
    assert len(table) == 10


def test_folder_without_finished_runs_is_one_line(tmp_path):
    with pytest.raises(UserError, match="no finished run in"):
        call_command("archive", f"--runs={tmp_path}", f"--out={tmp_path / 'out.csv.xz'}")


RESULTS = Path(__file__).parents[3] / "docs" / "results"


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.csv.xz")), ids=lambda file: file.name)
def test_archived_runs_are_found(file):
    """Some runs of each archive, by what they set: a new key with a value in existing
    configurations would hide them all."""
    runs = pandas.read_csv(file, usecols=["run", "overrides"]).drop_duplicates("run")
    for run in runs.iloc[:: max(1, len(runs) // 4)].itertuples():
        assert run_path(resolve(*run.overrides.split())).name == run.run
