"""The table of runs: from manifests, plain run folders and archives."""

import math
import shlex

import pytest
from conftest import resolve
from fabricated import rows_of, write_manifest, write_run

from rec_experiments.analysis.results.figure import NoRuns, figure_runs, multirun
from rec_experiments.analysis.results.table import find, runs, table
from rec_experiments.common.errors import UserError
from rec_experiments.config.identity import flat
from rec_experiments.config.settings import NO_SETTING, experiment, oldest_age, settings
from rec_experiments.sweeps import load_figure, points

SEEDS = ("seed=0,1", "sync=offline", "steps=40")


@pytest.fixture
def folder(tmp_path):
    """Figure 3 with two seeds offline: one run failed, one not begun, the others done."""
    figure, lines = load_figure("fig3", [*SEEDS]), []
    for number, point in enumerate(points(figure, [*SEEDS])):
        seed, run = number // 5, f"run{number}"
        lines.append(["fig3", point.label, "offline", seed, run, shlex.join(point.overrides)])
        if number != 9:
            state = "failed" if number == 8 else "done"
            write_run(tmp_path / run, rows_of(point.label, seed), state)
    write_manifest(tmp_path, lines)
    return tmp_path


def test_the_manifest_labels_the_runs(folder):
    write_run(
        folder / "alone", rows_of("GRPO", 3), config=resolve("algo=grpo", "seed=3", "steps=40")
    )
    found = runs([folder]).set_index("run")
    labels = found[["figure", "arm", "column", "seed"]].T.to_dict("list")
    assert labels["run1"] == ["fig3", "GRPO", "offline", 0]
    assert labels["alone"] == ["", "GRPO", "interval 20", 3]
    assert found["state"].value_counts().to_dict() == {"done": 9, "failed": 1, "missing": 1}
    steps = table(found.reset_index())
    assert len(steps) == 10 * 41
    one = steps[steps["run"] == "run1"].set_index("step")
    row = rows_of("GRPO", 0)[20]
    assert one.loc[20, [*row][1:]].to_dict() == {key: row[key] for key in [*row][1:]}
    assert math.isnan(one.loc[21, "eval/accuracy"])


def test_a_run_that_a_manifest_has_twice_is_drawn_once(tmp_path):
    write_run(tmp_path / "run", rows_of("GRPO", 0))
    write_manifest(tmp_path, [["mine", "GRPO", "offline", 0, "run", "seed=0"]] * 2, "mine")
    assert multirun("mine", find([tmp_path])).runs["run"].tolist() == ["run"]


def test_the_runs_of_a_figure_are_found_by_their_overrides(folder):
    data = figure_runs("fig3", find([folder]), ["seed=1", "sync=offline", "steps=40"])
    assert data.runs["run"].tolist() == ["run5", "run6", "run7", "run8", "run9"]
    assert data.runs["state"].tolist() == ["done"] * 3 + ["failed", "missing"]
    with pytest.raises(NoRuns, match="-m sweep=fig3 seed=7"):
        figure_runs("fig3", find([folder]), ["seed=7"])
    with pytest.raises(UserError, match="no such figure"):
        figure_runs("fig33", find([folder]), [])


def test_two_ways_to_write_an_experiment_are_one():
    usual = experiment("algo=rec_oneside_nois setting=mini/gsm8k")
    same = "setting=mini/gsm8k optimizer.learning_rate=3e-5 clip.low=0.20 tracking=wandb"
    assert experiment(same) == usual
    for other in ("algo=rec_oneside_is setting=mini/gsm8k", "setting=mini/guru", "clip.low=0.6"):
        assert experiment(other) != usual


@pytest.mark.parametrize(
    "value",
    ["9" * 400, "[" * 5000, "2020-99-99", f"[&a [1]{(',&a [' + '*a,' * 9 + ']') * 12}]"],
    ids=["integer", "depth", "date", "aliases"],
)
def test_a_value_that_no_run_accepts_stays_a_text(value):
    assert settings(shlex.quote(f"steps={value}"))["steps"] == value
    assert len(experiment(shlex.quote(f"steps={value}"))) == 16


@pytest.mark.parametrize(
    "overrides",
    [
        "algo=grpo_kl setting=lm/gsm8k sync=offset10",
        "algo=rec_ring setting=mini_chain/gsm8k clip=two_side",
        "algo=cppo setting=paper/gsm8k sampler=noisier",
        "algo=mu_grpo setting=mini/gsm8k_twice sync=in_flight seed=3",
    ],
)
def test_settings_are_those_that_hydra_composes(overrides):
    composed = {
        key: value
        for key, value in flat(resolve(*overrides.split())).items()
        if key.split(".")[0] not in NO_SETTING
    }
    assert {key: settings(overrides).get(key) for key in composed} == composed


def test_a_torn_last_line_is_left_out_and_a_damaged_run_is_named_once(tmp_path, capsys):
    for name in ("torn", "damaged"):
        write_run(tmp_path / name, rows_of("GRPO", 0, steps=3), "running")
    with open(tmp_path / "torn" / "metrics.jsonl", "a") as file:
        file.write('{"step": 4, "train/rew')
    (tmp_path / "damaged" / "status.json").write_text("")
    for _ in range(2):
        found = runs([tmp_path]).set_index("run")
    assert found.loc["torn", ["state", "step"]].tolist() == ["running", 3]
    assert found.loc["damaged", "state"] == "unreadable"
    assert capsys.readouterr().err == f"left out: {found.loc['damaged', 'note']}\n"
    assert set(table(found.reset_index())["run"]) == {"torn"}


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda rows: rows[:7] + rows[8:], "it has step 8 in place of step 7"),
        (lambda rows: [rows[0], *rows], "it has step 0 in place of step 1"),
        (lambda rows: [*rows[:-1], {"step": 40}], "it has no evaluation at the end"),
        (lambda rows: [*rows[:-1], {**rows[-1], "m": "x"}], "could not convert string"),
        (lambda rows: [*rows[:-1], {**rows[-1], "state": 1}], "state is no metric"),
    ],
)
def test_a_finished_run_has_each_step_once_and_in_order(tmp_path, spoil, why):
    write_run(tmp_path / "run", spoil(rows_of("GRPO", 0)))
    assert why in runs([tmp_path])["note"][0]


def test_recorded_values_that_are_not_finite_are_infinite(tmp_path):
    rows = [{"step": 0, "m": math.nan}, {"step": 1}, {"step": 2, "m": -math.inf}]
    write_run(tmp_path / "run", rows, "failed")
    found = table(runs([tmp_path]))["m"].tolist()
    assert (found[0], found[2]) == (math.inf, -math.inf)
    assert math.isnan(found[1])


def test_of_copies_the_finished_one_counts(tmp_path, capsys):
    folders = [tmp_path / name for name in "abc"]
    for folder, steps, state in zip(
        folders, (40, 39, 40), ("failed", "running", "done"), strict=True
    ):
        write_run(folder / "both", rows_of("GRPO", 0, steps), state)
    assert runs(folders)["path"].tolist() == [folders[2] / "both"]
    assert capsys.readouterr().err == ""


def test_a_run_that_no_command_line_started_is_in_no_figure(tmp_path):
    """Its values may come from Python, and its command does not name them."""
    write_run(tmp_path / "run", rows_of("GRPO", 0), command=["python", "mine.py"])
    assert find([tmp_path])["experiment"].tolist() == [""]


def test_oldest_age():
    ages = {"on_policy": 0, "interval20": 19, "offset10": 10, "offline": 149, "in_flight": 3}
    assert {sync: oldest_age(settings(f"sync={sync}")) for sync in ages} == ages
