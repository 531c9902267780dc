"""An archive of runs: what it keeps of a run folder, and that it reads like one."""

import lzma
from pathlib import Path

import pandas
import pytest
from fabricated import rows_of, write_run

from rec_experiments.analysis.results import archive
from rec_experiments.analysis.results.figure import figure_runs
from rec_experiments.analysis.results.table import find, runs, table
from rec_experiments.cli.main import run_command
from rec_experiments.common.errors import UserError
from rec_experiments.common.files import ARCHIVE


@pytest.fixture
def folder(tmp_path):
    """Two finished runs, one that goes on."""
    words = [
        "python",
        "-m",
        "rec_experiments",
        "algo=grpo",
        "output_dir=/home/me",
        "tracking=wandb",
    ]
    for seed, state in enumerate(("done", "done", "running")):
        command = [*words, f"seed={seed}"]
        write_run(tmp_path / f"run{seed}", rows_of("GRPO", seed), state, command=command)
    return tmp_path


def written(folder, *places):
    file = folder / f"all{ARCHIVE}"
    run_command("archive", f"--runs={','.join(map(str, places or [folder]))}", f"--out={file}")
    return file


def test_archive_has_finished_runs_at_their_evaluations(folder):
    found = pandas.read_csv(written(folder))
    assert list(found["run"].unique()) == ["run0", "run1"]
    assert set(found["step"]) == {0, 10, 20, 30, 40}
    assert set(found["overrides"]) == {"algo=grpo seed=0", "algo=grpo seed=1"}
    assert set(found["release"]) == {12}
    assert "train/mismatch" not in found  # no run has it


def test_archived_run_has_the_evaluations_and_means_of_its_folder(folder):
    found = runs([written(folder)])
    assert set(found["arm"]) == {"algo=grpo"}  # without its seed
    assert found[["seed", "state", "step", "release"]].to_numpy().tolist() == [
        [0, "done", 40, 12], [1, "done", 40, 12],
    ]  # fmt: skip
    one, rows = table(found[1:]).set_index("step"), rows_of("GRPO", 1)
    for before, step in zip(one.index, one.index[1:], strict=False):
        rewards = [each["train/reward"] for each in rows[before + 1 : step + 1]]
        assert one.loc[step, "train/reward"] == pytest.approx(sum(rewards) / 10, rel=1e-3)
        assert one.loc[step, "eval/accuracy"] == pytest.approx(
            rows[step]["eval/accuracy"], rel=1e-3
        )
    assert pandas.isna(one.loc[0, "train/reward"])


def test_archives_and_folders_join_into_the_same_bytes(folder, capsys):
    file = written(folder)
    before = file.read_bytes()
    assert written(folder, file, folder).read_bytes() == before
    assert capsys.readouterr().err == ""


def test_a_schedule_that_is_not_known_here_has_the_name_of_its_choice(tmp_path):
    command = ["python", "-m", "rec_experiments", "algo=grpo", "sync=elsewhere"]
    write_run(tmp_path / "run", rows_of("GRPO", 0), command=command)
    assert find([written(tmp_path)])["column"].tolist() == ["elsewhere"]


def changed(lines, number, column, value):
    """The lines of an archive with one value replaced."""
    cells = lines[number].split(",")
    cells[lines[0].split(",").index(column)] = value
    return [*lines[:number], ",".join(cells), *lines[number + 1 :]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: ["a,b", "1,2"], "its first columns are not run, overrides, release, step"),
        (lambda lines: changed(lines, 2, "eval/accuracy", "abc"), "could not convert string"),
        (lambda lines: changed(lines, 2, "eval/accuracy", "7.5"), "run0: .* is no share"),
        (lambda lines: [*lines[:2], lines[2] + ",1", *lines[3:]], "Expected . fields"),
        (lambda lines: [*lines, lines[5]], "run0: its steps do not rise from 0"),
        (lambda lines: changed(lines, 2, "step", "9" * 40), "Overflow"),
        (lambda lines: changed(lines, 2, "release", "inf"), "cannot convert"),
        (lambda lines: changed(lines, 2, "run", "../run0"), "../run0: is no name of a run folder"),
        (lambda lines: changed(lines, 2, "overrides", "seed=1"), "overrides are not the same"),
        (lambda lines: changed(lines, 2, "overrides", "seed='1"), "No closing quotation"),
    ],
)
def test_damaged_archive_is_refused_in_one_line(folder, change, message):
    file = written(folder)
    lines = lzma.decompress(file.read_bytes()).decode().splitlines()
    file.write_bytes(lzma.compress("\n".join(change(lines)).encode()))
    with pytest.raises(UserError, match=message) as caught:
        find([file])
    assert str(caught.value).startswith(f"{file}: is no archive of runs (")


def test_an_archive_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "LARGEST", 1 << 20)
    file = tmp_path / f"bomb{ARCHIVE}"
    file.write_bytes(lzma.compress(bytes(2 << 20)))
    with pytest.raises(UserError, match="it unpacks to more than 1 MB"):
        find([file])


RESULTS = Path(__file__).parents[3] / "docs" / "results"


@pytest.mark.parametrize(
    ("file", "figure", "overrides", "found"),
    [
        ("claims", "fig3", "seed=10 optimizer.learning_rate=3e-5,1e-4", 30),
        ("claims", "fig4", "seed=10", 6),
        ("stability", "stability", "seed=0 sync=interval20", 104),
        ("generality", "batch_sizes", "seed=0", 30),
        ("rounding", "fig3", "seed=10 micro_batch_size=24", 15),
        ("asynchrony", "in_flight", "seed=0 optimizer.learning_rate=3e-4", 7),
    ],
)
def test_runs_of_the_archives_are_found(file, figure, overrides, found):
    """A new key with a value in existing configurations would hide them all."""
    data = figure_runs(figure, find([RESULTS / f"{file}{ARCHIVE}"]), overrides.split())
    assert (data.runs["state"] == "done").sum() == found


@pytest.mark.parametrize("file", sorted(RESULTS.glob(f"*{ARCHIVE}")), ids=lambda file: file.name)
def test_every_archived_run_has_a_name_of_its_own(file):
    assert not find([file]).duplicated(["arm", "column", "seed"]).any()
