"""The sweeps beyond the paper: staleness, and paper 2 (arXiv 2505.22257).

1. Staleness has every preset at its defaults, both forms of age, and tunes on seeds of its own.
2. Figure 2 and Tables 2 and 3 of paper 2 have its settings at its scale, and stand-ins below.
3. The files of Tables 2 and 3 have the columns of those tables.
"""

import json

import pytest
import yaml
from conftest import resolve
from fabricated import STABLE, rows_of, write_run

from rec_experiments import sweeps
from rec_experiments.cli.main import run_command
from rec_experiments.config import schema
from rec_experiments.config.experiment import Experiment

AGES = [0, 1, 2, 5, 10, 20, 50, 100]


def expanded(name, scale, *overrides):
    overrides = [f"scale={scale}", *overrides]
    figure = sweeps.load_figure(name, overrides)
    return figure, sweeps.expand(figure, overrides)


def choice(group, name):
    """What a file of conf says itself."""
    return yaml.safe_load((schema.CONF / group / f"{name}.yaml").read_text())


# Staleness ---------------------------------------------------------------------------------------


def test_every_preset_stands_in_the_staleness_sweep_at_its_defaults():
    figure, _ = expanded("staleness", "mini")
    plain = {tuple(lines): label for label, lines in figure.arms.items() if len(lines) == 1}
    presets = {path.stem for path in (schema.CONF / "algo").glob("*.yaml")}
    assert set(plain) == {(f"algo={name}",) for name in presets}
    for (line,), label in plain.items():
        assert label.startswith(choice("algo", line.removeprefix("algo="))["algo"]["name"])
    assert [lines for lines in figure.arms.values() if len(lines) > 1] == [
        ["algo=rec_oneside_nois", "clip.low=0.6", "clip.high=2.0"]
    ]


def test_ages_are_those_that_are_asked_for_in_both_forms():
    figure, _ = expanded("staleness", "mini")
    schedules = []
    for name in figure.grid["sync"]:
        given = choice("sync", name)
        schedules.append((given.get("interval", 1), given.get("offset", 0)))
        assert name in figure.headings
    offsets = [offset for interval, offset in schedules if interval == 1]
    intervals = [interval for interval, offset in schedules if interval and not offset]
    assert offsets == AGES
    assert intervals == [1, *AGES[2:]]  # interval 1 is age 0
    assert schedules[-1] == (None, 0)
    assert len(set(schedules)) == len(schedules)


def test_a_subset_is_chosen_on_the_command_line():
    only = "hydra.sweeper.only=[GRPO,'REC-OneSide-NoIS (0.6, 2.0)']"
    _, points = expanded("staleness", "mini_chain", "sync=offset5,interval20", "seed=0,1,2", only)
    assert len(points) == 2 * 2 * 3
    assert {point.lines["setting"] for point in points} == {"setting=mini_chain/gsm8k"}


def test_tuning_is_on_other_seeds_than_judging_with_one_budget():
    figure, points = expanded("staleness_tuning", "mini")
    judging = yaml.safe_load((schema.CONF / "scale" / "mini.yaml").read_text())["claim_seeds"]
    assert not set(figure.grid["seed"]) & set(judging)
    assert len(points) == len(figure.arms) * 4 * 3
    assert figure.picture == "staleness"
    assert {figure.heading(point)[:5] for point in points} == {"rate "}


@pytest.mark.parametrize("arm", ["DAPO", "TOPR", "GRPO"])
def test_flipped_rewards_are_given_to_every_method(arm):
    figure, points = expanded("staleness_noise", "mini", f"hydra.sweeper.only=[{arm}]", "seed=0")
    shares = [resolve(*point.overrides)["reward"] for point in points]
    assert [each["share"] for each in shares] == [0.0, 0.05, 0.1, 0.2]
    assert {each["kind"] for each in shares} == {"noise"}
    assert all("flipped" in figure.heading(point) for point in points)


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
    swaps = (reference["kind"], reference["swap_every"])
    return config["sync"]["interval"], config["updates"]["epochs"], *swaps


def test_figure_2_of_paper_2_is_its_section_5_1():
    jobs = of_jobs("paper2_fig2", "paper")
    assert {label: (vi(job.config), job.config["steps"]) for label, job in jobs.items()} == {
        "GRPO with KL (v=1, i=1)": ((1, 1, "reference", 267), 1068),
        "GRPO with KL (v=1, i=1), zero-variance masking": ((1, 1, "reference", 267), 1068),
        "GRPO with KL (v=10, i=1)": ((10, 1, "reference", 267), 1068),
        "GRPO with KL (v=1, i=10)": ((1, 10, "reference", None), 2670),
        "GRPO with KL (v=1, i=1), optimizer reset": ((1, 1, "staged", 267), 1068),
        "GRPO with KL (v=10, i=1), optimizer reset": ((10, 1, "staged", 267), 1068),
    }
    for label, job in jobs.items():
        config = job.config
        assert config["model"]["path"] == "Qwen/Qwen2.5-0.5B-Instruct"
        assert config["dataset"]["train"]["hub"] == "openai/gsm8k"
        assert (config["batch_size"], config["group_size"]) == (28, 16)
        assert -(-7473 // config["batch_size"]) == 267  # batches of an epoch
        assert config["optimizer"]["learning_rate"] == 5e-6
        assert (config["regularizer"]["kind"], config["regularizer"]["beta"]) == ("k3", 0.1)
        assert config["advantage"]["kind"] == "whitened"
        assert config["sampler"]["temperature"] == config["sampler"]["eval_temperature"] == 0.1
        assert (config["dataset"]["max_response_tokens"], config["eval_samples"]) == (200, 50)
        masked = config["data_weighting"]["kind"] == "varied_groups"
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


@pytest.mark.parametrize("table", ["paper2_table2", "paper2_table3"])
def test_the_files_of_the_tables_have_their_columns(table, tmp_path):
    """Runs that rise from 0.3 by 1 / 80 a step, and by 0.01 a seed."""
    runs = sweeps.jobs(sweeps.load_figure(table))
    for path, job in sweeps.distinct(runs).items():
        steps = job.config["steps"]
        write_run(tmp_path / "runs" / path.name, rows_of(STABLE, job.config["seed"], steps))
    run_command("figures", *[table, f"out={tmp_path}", f"runs={tmp_path}/runs"])
    found = json.loads((tmp_path / f"{table}.json").read_text())["evaluations"]
    assert [(row["arm"], row["column"], row["seeds"]) for row in found] == [
        (arm, "β = 0.001", 3) for arm in ("GRPO with KL (v=1, i=1)", "GRPO with KL (v=10, i=1)")
    ]
    low, high = 0.31, 0.31 + steps / 80
    middle = (low + high) / 2
    for row in found:
        means = [row[name]["mean"] for name in ("lowest", "highest", "median", "mean")]
        assert means == pytest.approx([low, high, middle, middle])
    text = (tmp_path / f"{table}.txt").read_text()
    assert "seeds  Min              Max              Median           Mean\n" in text
    cells = (f"{each:.4f} ± 0.0248" for each in (low, high, middle, middle))
    assert text.count("3      " + "  ".join(cells) + "\n") == 2


def test_an_unknown_statistic_is_one_line(capsys):
    with pytest.raises(SystemExit) as caught:
        run_command("figures", *["paper2_table2", "hydra.sweeper.statistics=[mode]"])
    error = capsys.readouterr().err
    assert (caught.value.code, error.count("\n")) == (2, 1)
    assert "hydra.sweeper.statistics=mode: no such choice; allowed: lowest, highest" in error


@pytest.mark.parametrize(
    ("name", "scale"),
    [
        ("staleness", "mini_chain"),
        ("staleness_rate", "small"),
        ("staleness_noise", "mini"),
        ("paper2_fig2", "paper"),
        ("paper2_table3", "small"),
    ],
)
def test_every_scale_has_titles_captions_and_resources(name, scale):
    figure, points = expanded(name, scale)
    assert figure.title
    assert figure.caption
    assert points
    assert figure.hours > 0


# Stand-ins ---------------------------------------------------------------------------------------

STAND_INS = [
    f"{scale}/{file.stem}"
    for scale in ("mini", "mini_chain")
    for file in sorted((schema.CONF / "setting" / scale).glob("*.yaml"))
]


@pytest.mark.parametrize("setting", STAND_INS)
def test_a_stand_in_has_as_many_problems_as_it_asks_for(setting):
    """Small numbers make few prompts."""
    task = schema.build(schema.restore(resolve(f"setting={setting}")), Experiment).dataset
    train, held_out = task.load()
    assert (len(train), len(held_out)) == (task.train_problems, task.eval_problems)
