"""`tune`: the learning rate of each method, chosen from runs.

1. A method is tuned only on its whole budget, to the rate that is best over seeds; runs that lost
   rows, or have no evaluation, are no budget.
2. What it was chosen from is told: means, rates at an end of those tried, runs that differ.
3. The file keeps the scales that are not tuned now; a file of another kind is left alone.
4. Its sweep has the tuned arms and no others, at the rates that their labels name.
"""

import json
from importlib import import_module
from pathlib import Path

import pytest
import yaml
from fabricated import write_run

from rec_experiments import sweeps
from rec_experiments.analysis import tuning
from rec_experiments.analysis.results import figure_data as collect
from rec_experiments.cli.main import call_command
from rec_experiments.config import schema
from rec_experiments.errors import UserError
from rec_experiments.sweeps import compositions

jobs_module = import_module("rec_experiments.sweeps.jobs")  # `sweeps.jobs` is the function

ARMS = ("GRPO", "RLOO")
ONLY = f"hydra.sweeper.only=[{','.join(ARMS)}]"
BEST = {"GRPO": 6e-5, "RLOO": 1.5e-4}


def rows_of(job, above=0.0):
    """A run of its steps, evaluated at its ends; highest at the rate that is BEST."""
    rate, steps = job.config["optimizer"]["learning_rate"], job.config["steps"]
    end = 0.3 + 0.2 * (rate == BEST[job.label]) + above
    rows = [{"step": step, "train/reward": 0.5} for step in range(steps + 1)]
    return [rows[0] | {tuning.METRIC: 0.2}, *rows[1:-1], rows[-1] | {tuning.METRIC: end}]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder with every tuning run of two methods at scale=mini, and what is asked for cut to
    these two. Returns the folder's path for each run of a method."""

    def composed(name, overrides, for_claims=False):
        return collect.composed(name, (*overrides, ONLY), for_claims)

    def collected(name, folders, overrides):
        return collect.collect(name, folders, [*overrides, ONLY])

    monkeypatch.setattr(tuning, "composed", composed)
    monkeypatch.setattr(tuning, "collect", collected)
    found = {}
    for job in composed(tuning.SWEEP, ("scale=mini",))[1]:
        path = write_run(tmp_path / "runs" / job.path.name, rows_of(job))
        found.setdefault(job.label, []).append(path)
    return found


@pytest.fixture
def tuned(tmp_path, runs):
    """Runs the command at scale=mini; what it wrote."""

    def tuned(*more):
        out = tmp_path / "tuned.yaml"
        call_command("tune", "scale=mini", f"runs={tmp_path / 'runs'}", f"out={out}", *more)
        return yaml.safe_load(out.read_text())

    return tuned


def arms_at(node, scale):
    return node["at"][scale]["arms"]


def test_the_best_rate_is_that_of_the_mean_and_the_lower_of_equals():
    assert tuning.best_rate({1e-5: {0: 0.2, 1: 0.6}, 3e-5: {0: 0.3, 1: 0.6}}) == 3e-5
    assert tuning.best_rate({3e-5: {0: 0.5}, 1e-5: {0: 0.5}}) == 1e-5


def test_the_table_tells_means_and_rates_at_an_end_of_those_tried(tuned, capsys):
    node = tuned()
    assert arms_at(node, "mini") == {
        "RLOO, lr 0.00015": ["algo=rloo", f"{tuning.KEY}=0.00015"],
        "GRPO, lr 6e-05": ["algo=grpo", f"{tuning.KEY}=6e-05"],
    }
    out, err = capsys.readouterr()
    title, head, rloo, grpo = out.splitlines()[:4]
    assert title == "scale=mini: mean final accuracy by learning rate"
    assert head.split() == ["method", "1.5e-05", "3e-05", "6e-05", "0.00015", "chosen"]
    means = ["0.250", "0.250", "0.250", "0.350"]  # of 0.2 at the start and 0.3 or 0.5 at the end
    assert rloo.split() == ["RLOO", *means, "0.00015,", "the", "highest"]
    assert grpo.split() == ["GRPO", *means[:2], means[3], means[2], "6e-05"]
    assert "mini: 2 of 2 methods tuned" in err


def test_a_rate_at_the_low_end_is_told():
    found = {"A": {1e-5: {0: 0.5}, 3e-5: {0: 0.4}}, "B": {1e-5: {0: 0.5}, 3e-5: {0: 0.6}}}
    assert [row[-1] for row in tuning.table(found)] == [
        "chosen",
        "1e-05, the lowest",
        "3e-05, the highest",
    ]


def cut(path):
    file = path / "metrics.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:40]))


def empty(path):
    (path / "metrics.jsonl").write_text("")


def without_evaluation(path):
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    rows = [{"step": row["step"], "train/reward": 0.5} for row in rows]
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def without_a_number(path):
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    rows[-1][tuning.METRIC] = float("nan")
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def unfinished(path):
    (path / "status.json").write_text('{"state": "failed"}')


@pytest.mark.parametrize("damage", [cut, empty, without_evaluation, without_a_number, unfinished])
def test_only_a_whole_budget_tunes(damage, tuned, runs, capsys):
    damage(runs["GRPO"][3])
    assert list(arms_at(tuned(), "mini")) == ["RLOO, lr 0.00015"]
    assert "budget not spent: GRPO" in capsys.readouterr().err


def test_without_a_budget_nothing_is_written(tuned, runs, tmp_path):
    for paths in runs.values():
        unfinished(paths[0])
    with pytest.raises(UserError, match="no method has all of its tuning runs; make them with"):
        tuned()
    assert not (tmp_path / "tuned.yaml").exists()


def test_runs_that_differ_in_two_folders_are_told(tuned, tmp_path, capsys):
    [job] = [
        job
        for job in tuning.composed(tuning.SWEEP, ("scale=mini",))[1]
        if (job.label, job.config["seed"]) == ("GRPO", 100)
        and job.config["optimizer"]["learning_rate"] == BEST["GRPO"]
    ]
    write_run(tmp_path / "other" / job.path.name, rows_of(job, above=0.1))
    tuned(f"runs={tmp_path / 'runs'},{tmp_path / 'other'}")
    assert "With different numbers in another folder: GRPO, rate 6e-5, seed 100" in (
        capsys.readouterr().err
    )


def test_other_scales_stay_in_the_file(tuned, tmp_path, capsys):
    chain = {"GRPO, lr 3e-05": ["algo=grpo", f"{tuning.KEY}=3e-05"]}
    before = {"mini": {"arms": {"old": []}}, "mini_chain": {"arms": chain}}
    (tmp_path / "tuned.yaml").write_text(tuning.sweep(before))
    node = tuned()
    assert arms_at(node, "mini_chain") == chain
    assert list(arms_at(node, "mini")) == ["RLOO, lr 0.00015", "GRPO, lr 6e-05"]
    assert "unchanged in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ((schema.CONF / "sweep" / "staleness.yaml").read_text(), "was not written by tune"),
        ("", "was not written by tune"),
        (f"{tuning.HEAD}at: [", "is damaged; remove it"),
        (f"{tuning.HEAD}at: 3", "is damaged; remove it"),
        (f"{tuning.HEAD}other: 3", "is damaged; remove it"),
    ],
)
def test_another_file_is_left_alone(text, message, tuned, tmp_path):
    out = tmp_path / "tuned.yaml"
    out.write_text(text)
    with pytest.raises(UserError, match=f"tuned.yaml: is there and {message}"):
        tuned()
    assert out.read_text() == text


@pytest.fixture
def as_sweep(tmp_path, monkeypatch):
    """The tuned sweep beside all others, in a folder of configuration of its own."""
    conf = tmp_path / "conf"
    (conf / "sweep").mkdir(parents=True)
    for path in schema.CONF.iterdir():
        if path.name != "sweep":
            (conf / path.name).symlink_to(path)
    at = {
        "mini": {"arms": tuning.tuned_arms({"GRPO": {6e-5: {100: 0.5}}}, {"GRPO": ["algo=grpo"]})}
    }
    (conf / "sweep" / Path(tuning.OUT).name).write_text(tuning.sweep(at))
    monkeypatch.setattr(schema, "CONF", conf)
    monkeypatch.setenv("REC_EXPERIMENTS_CACHE", str(tmp_path / "cache"))
    cached = (compositions._read, compositions.digest)
    for each in cached:
        each.cache_clear()

    def jobs(*overrides):
        figure = sweeps.load_figure("staleness_tuned", list(overrides))
        return figure, sweeps.jobs(figure, list(overrides))

    yield jobs
    for each in cached:
        each.cache_clear()


FEW = ("scale=mini", "sync=interval20", "seed=0")


def test_the_sweep_has_tuned_arms_alone_and_the_rates_of_their_labels(as_sweep):
    figure, [job] = as_sweep(*FEW)
    assert (figure.picture, figure.columns) == ("staleness", "sync")
    assert figure.title.startswith("Staleness in miniature: methods at their best learning rate")
    assert (job.label, job.config["optimizer"]["learning_rate"]) == ("GRPO, lr 6e-05", 6e-5)
    assert [job.label for job in as_sweep(*FEW, 'hydra.sweeper.only=["GRPO,*"]')[1]] == [job.label]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([*FEW, "hydra.sweeper.only=[GRPO]"], "only=GRPO: matches no arm; .*: GRPO, lr 6e-05"),
        ([*FEW, f"{tuning.KEY}=1e-3"], f"{tuning.KEY}=1e-3: the arms of this sweep set it"),
        ([*FEW, f"++{tuning.KEY}=1e-3,2e-3"], "the arms of this sweep set it"),
        (["scale=small", *FEW[1:]], "scale=small: this sweep has no arms there; allowed: mini$"),
    ],
)
def test_what_would_run_an_untuned_method_is_refused(overrides, message, as_sweep):
    with pytest.raises(UserError, match=message):
        as_sweep(*overrides)
