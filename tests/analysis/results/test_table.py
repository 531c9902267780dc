"""The table of runs: from manifests, plain run folders and archives."""

import math
import shlex

import pandas
import pytest
from conftest import resolve
from fabricated import rows_of, write_run

from rec_experiments.analysis.results.figure import NoRuns, figure_runs
from rec_experiments.analysis.results.settings import NO_SETTING, experiment, settings
from rec_experiments.analysis.results.table import MANIFEST, find, runs, table
from rec_experiments.config.identity import flat
from rec_experiments.errors import UserError
from rec_experiments.sweeps import load_figure, points

SEEDS = ("seed=0,1", "sync=offline", "steps=40")


def write_manifest(folder, lines, name="fig3"):
    (folder / "manifests").mkdir(exist_ok=True)
    pandas.DataFrame(lines, columns=MANIFEST).to_csv(
        folder / "manifests" / f"{name}.csv", index=False
    )


@pytest.fixture
def folder(tmp_path):
    """Figure 3 with two seeds offline: one run failed, one not begun, the others done."""
    figure, lines = load_figure("fig3", [*SEEDS]), []
    for number, point in enumerate(points(figure, [*SEEDS])):
        seed = number // 5
        overrides = shlex.join(point.overrides)
        lines.append(["fig3", point.label, "offline", seed, f"run{number}", overrides])
        if number != 9:
            write_run(
                tmp_path / f"run{number}",
                rows_of(point.label, seed),
                "failed" if number == 8 else "done",
            )
    write_manifest(tmp_path, lines)
    return tmp_path


def test_the_manifest_labels_the_runs(folder):
    write_run(
        folder / "alone", rows_of("GRPO", 3), config=resolve("algo=grpo", "seed=3", "steps=40")
    )
    found = runs([folder]).set_index("run")
    assert found.loc["run1", ["figure", "arm", "column", "seed"]].tolist() == [
        "fig3",
        "GRPO",
        "offline",
        0,
    ]
    assert found.loc["alone", ["figure", "arm", "column", "seed"]].tolist() == [
        "",
        "GRPO",
        "interval 20",
        3,
    ]
    assert found["state"].value_counts().to_dict() == {"done": 9, "failed": 1, "missing": 1}
    steps = table(found.reset_index())
    assert len(steps) == 10 * 41
    one = steps[steps["run"] == "run1"].set_index("step")
    row = rows_of("GRPO", 0)[20]
    assert one.loc[20, [*row][1:]].to_dict() == {key: row[key] for key in [*row][1:]}
    assert math.isnan(one.loc[21, "eval/accuracy"])


def test_the_runs_of_a_figure_are_found_by_their_overrides(folder):
    data = figure_runs("fig3", find([folder]), ["seed=1", "sync=offline", "steps=40"])
    assert data.runs["run"].tolist() == ["run5", "run6", "run7", "run8", "run9"]
    assert data.missing["arm"].tolist() == ["REC-OneSide-NoIS (0.6, 2.0)"]
    assert data.partial["run"].tolist() == ["run8"]
    with pytest.raises(NoRuns, match="-m sweep=fig3 seed=7"):
        figure_runs("fig3", find([folder]), ["seed=7"])
    with pytest.raises(UserError, match="no such figure"):
        figure_runs("fig33", find([folder]), [])


def test_two_ways_to_write_an_experiment_are_one():
    usual = experiment("algo=rec_oneside_nois setting=mini/gsm8k")
    assert (
        experiment("setting=mini/gsm8k optimizer.learning_rate=3e-5 clip.low=0.20 tracking=wandb")
        == usual
    )
    assert experiment("algo=rec_oneside_is setting=mini/gsm8k") != usual
    assert experiment("setting=mini/gsm8k clip.low=0.6") != usual
    assert experiment("setting=mini/guru") != usual


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
        if key.split(".")[0] not in NO_SETTING and not key.endswith(("kind", "_target_"))
    }
    assert {key: settings(overrides).get(key) for key in composed} == composed
