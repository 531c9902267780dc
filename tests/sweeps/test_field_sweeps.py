"""The sweeps beyond the paper: every preset, and paper 2 (arXiv 2505.22257).

1. Every preset is run at its defaults, on a part of the stability map's grid.
2. Figure 2 and Tables 2 and 3 of paper 2 have its settings at its scale, and stand-ins below.
3. The files of Tables 2 and 3 have the columns of those tables.
"""

import json
import re

import pytest
import yaml
from conftest import experiment, resolve
from fabricated import STABLE, rows_of, write_run

from rec_experiments import sweeps
from rec_experiments.cli.main import run_command
from rec_experiments.common.pieces import class_name
from rec_experiments.config import plugins, schema
from rec_experiments.config.experiment import Experiment
from rec_experiments.sweeps.jobs import distinct
from rec_experiments.sweeps.manifest import write_manifest


def expanded(name, scale, *overrides):
    overrides = [f"scale={scale}", *overrides]
    figure = sweeps.load_figure(name, overrides)
    return figure, sweeps.points(figure, overrides)


def choice(group, name):
    """What a file of conf says itself."""
    return yaml.safe_load((plugins.CONF / group / f"{name}.yaml").read_text())


# Presets ----------------------------------------------------------------------------------------


def test_every_preset_stands_at_its_defaults_in_the_sweep_of_presets():
    figure, _ = expanded("presets", "mini", "seed=0")
    plain = {lines[0]: label for label, lines in figure.arms.items() if len(lines) == 1}
    presets = {path.stem for path in (plugins.CONF / "algo").glob("*.yaml")}
    assert set(plain) == {f"algo={name}" for name in presets - {"opd"}}  # which needs a teacher
    for line, label in plain.items():
        assert label.startswith(choice("algo", line.removeprefix("algo="))["algo"]["name"])


@pytest.mark.parametrize("scale", ["mini", "mini_chain"])
def test_presets_share_their_grid_with_the_stability_map(scale):
    """So that no run of a method of both is made twice."""
    coarse, _ = expanded("presets", scale, "seed=0")
    fine, _ = expanded("stability", scale, "seed=0")
    for key, values in coarse.grid.items():
        assert set(values) <= set(fine.grid[key])
    assert (coarse.picture, coarse.map) == (fine.picture, fine.map)


@pytest.mark.parametrize("scale", ["mini", "mini_chain"])
def test_constant_lags_are_constant_after_their_first_steps(scale):
    """The settings synchronise every 20 steps; an offset alone would only shift that sawtooth."""
    _, found = expanded("constant_lags", scale, "seed=0")
    point = found[-1]
    sync = experiment(*point.overrides).sync
    lag = int(point.heading)
    assert set(sync.ages(1, 150)[lag:]) == {lag}


# Paper 2 -----------------------------------------------------------------------------------------


def of_jobs(name, scale):
    overrides = [f"scale={scale}"]
    found = sweeps.jobs(sweeps.load_figure(name, overrides), overrides)
    return {job.label: job for job in found if job.config["seed"] in (0, 42)}


def vi(config):
    """Its (v, i), and the distance of swaps with what is reset at them."""
    assert config["sync"]["offset"] == 0
    assert config["updates"]["mini_batches"] == 1
    reference = config["reference"]
    swaps = (class_name(reference), reference["swap_every"])
    return config["sync"]["interval"], config["updates"]["epochs"], *swaps


def test_figure_2_of_paper_2_is_its_section_5_1():
    jobs = of_jobs("paper2_fig2", "paper")
    assert {label: (vi(job.config), job.config["steps"]) for label, job in jobs.items()} == {
        "GRPO with KL (v=1, i=1)": ((1, 1, "Reference", 267), 1068),
        "GRPO with KL (v=1, i=1), zero-variance masking": ((1, 1, "Reference", 267), 1068),
        "GRPO with KL (v=10, i=1)": ((10, 1, "Reference", 267), 1068),
        "GRPO with KL (v=1, i=10)": ((1, 10, "Reference", None), 2670),
        "GRPO with KL (v=1, i=1), optimizer reset": ((1, 1, "StagedReference", 267), 1068),
        "GRPO with KL (v=10, i=1), optimizer reset": ((10, 1, "StagedReference", 267), 1068),
    }
    for label, job in jobs.items():
        config = job.config
        assert config["model"]["path"] == "Qwen/Qwen2.5-0.5B-Instruct"
        assert config["dataset"]["train"]["hub"] == "openai/gsm8k"
        assert (config["batch_size"], config["group_size"]) == (28, 16)
        assert -(-7473 // config["batch_size"]) == 267  # batches of an epoch
        assert config["optimizer"]["learning_rate"] == 5e-6
        assert (class_name(config["regularizer"]), config["regularizer"]["beta"]) == ("K3", 0.1)
        assert class_name(config["advantage"]) == "GroupWhitened"
        assert config["sampler"]["temperature"] == config["sampler"]["eval_temperature"] == 0.1
        assert (config["dataset"]["max_response_tokens"], config["eval_samples"]) == (200, 50)
        masked = class_name(config["data_weighting"]) == "VariedGroups"
        assert masked == ("masking" in label)


@pytest.mark.parametrize(
    ("table", "hub", "samples"),
    [
        ("paper2_table2", "HuggingFaceH4/aime_2024", 32),
        ("paper2_table3", "HuggingFaceH4/MATH-500", 1),
    ],
)
def test_tables_2_and_3_of_paper_2_are_its_section_5_2(table, hub, samples):
    jobs = of_jobs(table, "paper")
    assert expanded(table, "paper")[0].statistics == ["lowest", "highest", "median", "mean"]
    assert [vi(job.config)[:2] for job in jobs.values()] == [(1, 1), (10, 1)]
    for job in jobs.values():
        config = job.config
        assert config["model"]["path"] == "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
        assert config["dataset"]["train"]["hub"] == "agentica-org/DeepScaleR-Preview-Dataset"
        assert config["dataset"]["evaluation"]["hub"] == hub
        assert config["eval_samples"] == samples
        assert config["optimizer"]["learning_rate"] == 1e-6
        assert config["regularizer"]["beta"] == 0.001
        assert config["dataset"]["max_response_tokens"] == 4096
        assert config["sampler"]["temperature"] == 0.7
        assert config["group_size"] == 16


@pytest.mark.parametrize("scale", ["mini", "small"])
def test_stand_ins_have_what_sets_paper_2_apart(scale):
    """But for the temperature of 0.1, at which no group of a tiny model is live."""
    for name, beta in [("paper2_fig2", 0.1), ("paper2_table2", 0.001)]:
        jobs = of_jobs(name, scale)
        assert list(jobs) == list(of_jobs(name, "paper"))
        for job in jobs.values():
            config = job.config
            assert config["regularizer"]["beta"] == beta
            assert config["sampler"]["temperature"] == 0.7
            assert config["batch_size"] * config["group_size"] == 128
            if swap := config["reference"]["swap_every"]:
                assert config["steps"] == 4 * swap  # S = 3 swaps, four stages


def test_the_files_of_the_tables_have_their_columns(tmp_path):
    """Runs that rise from 0.3 by 1 / 80 a step, and by 0.01 a seed."""
    table = "paper2_table2"
    output_dir = f"output_dir={tmp_path}/runs"
    runs = sweeps.jobs(sweeps.load_figure(table), [output_dir])
    write_manifest(table, runs)
    for path, job in distinct(runs).items():
        steps = job.config["steps"]
        write_run(tmp_path / "runs" / path.name, rows_of(STABLE, job.config["seed"], steps))
    run_command("figures", table, f"--out={tmp_path}", f"--runs={tmp_path}/runs")
    found = json.loads((tmp_path / f"{table}.json").read_text())
    found = [row for row in found if row["metric"] == "eval/accuracy"]
    assert [(row["arm"], row["column"], row["seeds"]) for row in found] == [
        (arm, "β = 0.001", 3) for arm in ("GRPO with KL (v=1, i=1)", "GRPO with KL (v=10, i=1)")
    ]
    low, high = 0.31, 0.31 + steps / 80
    middle = (low + high) / 2
    for row in found:
        means = [row[name] for name in ("Min", "Max", "Median", "Mean")]
        assert means == pytest.approx([low, high, middle, middle])
        assert row["Min_high"] == pytest.approx(low + 0.0248, abs=1e-4)
    text = (tmp_path / f"{table}.txt").read_text()
    assert re.search(r" seeds +Min +Max +Median +Mean +paired\n", text)


# Stand-ins ---------------------------------------------------------------------------------------

STAND_INS = [
    f"{scale}/{file.stem}"
    for scale in ("mini", "mini_chain")
    for file in sorted((plugins.CONF / "setting" / scale).glob("*.yaml"))
]


@pytest.mark.parametrize("setting", STAND_INS)
def test_a_stand_in_has_as_many_problems_as_it_asks_for(setting):
    """Small numbers make few prompts."""
    task = schema.build(schema.restore(resolve(f"setting={setting}")), Experiment).dataset
    train, held_out = task.load()
    assert (len(train), len(held_out)) == (task.train_problems, task.eval_problems)
