"""The manifest of a sweep: a line for each job, updated when the sweep is launched again."""

import shlex

import pytest
from conftest import resolve

from rec_experiments import sweeps
from rec_experiments.common.errors import UserError
from rec_experiments.config.identity import run_path
from rec_experiments.config.settings import experiment
from rec_experiments.sweeps.jobs import Job
from rec_experiments.sweeps.manifest import multirun_name, write_manifest


def jobs_of(folder, *some, label="", heading=""):
    found = []
    for words in some:
        overrides = [*words, f"output_dir={folder}"]
        config = resolve(*overrides)
        found.append(Job(label, heading, overrides, config, run_path(config)))
    return found


def test_a_line_for_each_job(tmp_path):
    jobs = jobs_of(tmp_path, ["algo=grpo", "seed=1"], label="A, B", heading="offline")
    file = write_manifest("fig3", jobs)
    assert file == tmp_path / "manifests/fig3.csv"
    assert file.read_text() == (
        "figure,arm,column,seed,run,overrides\n"
        f'fig3,"A, B",offline,1,{jobs[0].path.name},algo=grpo seed=1 output_dir={tmp_path}\n'
    )
    [line] = sweeps.read_manifest(file)
    assert line.job == ("A, B", experiment("algo=grpo seed=1"))
    assert sweeps.read_manifest(tmp_path / "none.csv") == []


def test_a_multirun_names_methods_and_schedules(tmp_path):
    jobs = jobs_of(
        tmp_path, ["algo=grpo", "steps=3"], ["algo=reinforce", "steps=3", "sync=offline"]
    )
    file = write_manifest("multirun-1", jobs)
    lines = sweeps.read_manifest(file)
    assert [(line.arm, line.column) for line in lines] == [
        ("GRPO", "interval 20"), ("REINFORCE", "offline"),
    ]  # fmt: skip
    names = {multirun_name(words) for words in (["a=1,2", "b=3"], ["b=3", "a=1,2"])}
    assert len(names | {multirun_name(["a=1,2"])}) == 2


def test_launching_again_replaces_the_lines_of_the_same_jobs_and_runs(tmp_path):
    first, second = jobs_of(tmp_path, ["seed=0"], ["seed=1"], label="A")
    [other] = jobs_of(tmp_path, ["seed=0"], label="B")
    write_manifest("fig3", [first, second, other])
    [same_run] = jobs_of(tmp_path, ["seed=1", "steps=150"], label="A", heading="again")
    moved = Job("A", "", first.overrides, first.config, tmp_path / "elsewhere")
    file = write_manifest("fig3", [same_run, moved])
    assert [(line.arm, line.run, shlex.split(line.overrides)[:-1]) for line in
            sweeps.read_manifest(file)] == [
        ("B", other.path.name, ["seed=0"]),
        ("A", second.path.name, ["seed=1", "steps=150"]),
        ("A", "elsewhere", ["seed=0"]),
    ]  # fmt: skip


HEAD = "figure,arm,column,seed,run,overrides"


@pytest.mark.parametrize(
    "text",
    [
        "figure,arm\nfig3\n",
        "",
        f"{HEAD}\nfig3,A,offline,0,run,seed='0\n",
        f"{HEAD}\nfig3,A,offline,0,a\0b,seed=0\n",
    ],
)
def test_a_damaged_manifest_is_one_line(tmp_path, text):
    (tmp_path / "fig3.csv").write_text(text)
    with pytest.raises(UserError, match=r"fig3\.csv: cannot be read"):
        sweeps.read_manifest(tmp_path / "fig3.csv")


def test_a_sweep_has_one_output_folder(tmp_path):
    jobs = [*jobs_of(tmp_path / "a", ["seed=0"]), *jobs_of(tmp_path / "b", ["seed=0"])]
    with pytest.raises(UserError, match=r"^output_dir=.*a,.*b: must be one folder for all runs"):
        write_manifest("fig3", jobs)
