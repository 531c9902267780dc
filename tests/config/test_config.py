"""The configuration: presets, choices, defaults, and what is refused.

1. Three resolved configurations are on file: a changed default shows in review.
2. Every preset trains, and composes with a clip of another kind; every choice composes.
3. A value stands once: dataclasses have no defaults of their own.
"""

import dataclasses
import math
from itertools import zip_longest
from pathlib import Path

import pytest
from conftest import SMALL, composed, experiment, resolve, run
from omegaconf import OmegaConf
from update_golden import CONFIGS, GOLDEN

from rec_experiments.algo import clips
from rec_experiments.common.pieces import TARGET
from rec_experiments.config import plugins, schema
from rec_experiments.config.composition import composing
from rec_experiments.config.experiment import Pieces, plain
from rec_experiments.config.identity import run_path
from rec_experiments.config.labels import gpus_of
from rec_experiments.config.plugins import choices_by_group

PRESETS = sorted(path.stem for path in (plugins.CONF / "algo").glob("*.yaml"))
TRAINED = ("grpo", "opmd", "rec_ring_is", "red_drop")  # the others are long
# What a choice asks for that it has no value of.
UNFINISHED = {
    "pretrained": ["model.path=x"],
    "fine_tuned": ["model.path=x"],
    "own": ["dataset.path=x", "dataset.verifier=my_module.judge"],
    "reasoning_gym": ["dataset.name=chain_sum"],
    "verifiers": ["dataset.id=sums"],
    "teacher": ["reference.path=x"],
}


@pytest.mark.parametrize("name", CONFIGS)
def test_resolved_configuration_is_the_one_on_file(name):
    golden = OmegaConf.to_container(OmegaConf.load(GOLDEN / f"{name}.yaml"))
    assert resolve(*CONFIGS[name]) == golden


def test_a_paper_setting_has_the_gpus_that_its_model_fits_on():
    for setting, gpus in {"gsm8k": 1, "toolace": 1, "guru": 8, "math": 8}.items():
        assert gpus_of(resolve(f"setting=paper/{setting}")) == gpus


@pytest.mark.parametrize(
    "preset", [pytest.param(p, marks=[] if p in TRAINED else pytest.mark.long) for p in PRESETS]
)
def test_every_preset_trains(preset, tmp_path):
    own = {"mix_ppg": ["buffer.reuse=2"], "opd": ["reference=swapped"]}.get(preset, [])
    rows = run(tmp_path, *SMALL, f"algo={preset}", *own).metrics()
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert all(math.isfinite(row["train/loss"]) for row in rows[1:])


def test_presets_compose_with_other_clips():
    """Even with those that share no field with their own."""
    with composing() as compose:
        for preset in PRESETS[::5]:
            pieces = schema.build(
                compose("algorithm", [f"algo={preset}", "clip=binary_kl"]), Pieces
            )
            assert isinstance(pieces.clip, clips.BinaryKl)


def test_a_weight_reads_the_bounds_of_its_clip():
    weight = experiment("algo=gmpo", "clip.log_low=0.3").weight
    assert (weight.log_low, weight.log_high) == (0.3, 0.4)
    weight = experiment("algo=gmpo", "clip=two_side").weight
    assert (weight.log_low, weight.log_high) == (None, None)


def test_a_choice_on_the_command_line_wins_over_the_preset_in_any_order():
    for order in (("algo=grpo", "clip=dual"), ("clip=dual", "algo=grpo")):
        assert isinstance(experiment(*order).clip, clips.Dual)


def test_values_stand_in_yaml_only_and_every_choice_builds():
    """One choice of each group at a time: their numbers differ."""
    groups = {
        group: [[f"{group}={name}", *UNFINISHED.get(name, [])] for name in names]
        for group, names in choices_by_group().items()
        if group not in ("adapter", "algo", "gpus", "sweep", "scale", "setting")
    }
    for chosen in zip_longest(*groups.values(), fillvalue=[]):
        config = composed(*(override for choice in chosen for override in choice))
        for group in groups:
            piece = schema.piece(group, OmegaConf.to_container(config[group], resolve=True))
            assert list(plain(piece)) == [TARGET, *piece.field_names()]
            for field in dataclasses.fields(piece):
                assert field.default is field.default_factory is dataclasses.MISSING, field


def test_run_folders_differ_exactly_when_the_experiment_does():
    config = resolve()
    for key, value in {"tracking": {TARGET: "x.Wandb"}, "output_dir": "elsewhere"}.items():
        assert run_path({**config, key: value}).name == run_path(config).name
    different = [
        config, {**config, "seed": 1}, {**config, "steps": 99},
        {**config, "sync": {**config["sync"], "offset": 1}},
        {**config, "clip": {**config["clip"], "high": 2.0}},
        {**config, "weight": {TARGET: "rec_experiments.algo.weights.ImportanceWeight"}},
    ]  # fmt: skip
    moved = {**config, "clip": {**config["clip"], TARGET: "my_module.OneSide"}}
    assert run_path(moved) == run_path(config)
    assert len({run_path(each).name for each in different}) == len(different)


def test_home_folder_is_expanded(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert run_path({**resolve(), "run_dir": "~/x"}) == Path("/home/me/x")
    assert run_path({**resolve(), "output_dir": "~"}).parent == Path("/home/me")
