"""The configuration: presets, choices, defaults, and what is refused.

1. Three resolved configurations are on file: a changed default shows in review.
2. Every preset trains, and composes with a clip of another kind; every choice composes.
3. A value stands once: dataclasses have no defaults of their own.
4. Reading a configuration loads none of the large libraries but torch.
"""

import dataclasses
import math
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import pytest
from conftest import SMALL, composed, experiment, resolve
from omegaconf import OmegaConf
from update_golden import CONFIGS, GOLDEN

from rec_experiments.algo import clips, weights
from rec_experiments.common.pieces import TARGET
from rec_experiments.config import schema
from rec_experiments.config.composition import choices_by_group, composing
from rec_experiments.config.experiment import Experiment, Pieces, plain
from rec_experiments.config.identity import run_path
from rec_experiments.config.labels import gpus_of
from rec_experiments.runs.prepare import prepare
from rec_experiments.runs.run_folder import RunFolder

PRESETS = sorted(path.stem for path in (schema.CONF / "algo").glob("*.yaml"))
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
    rows = trained(experiment(*SMALL, f"algo={preset}", *own), tmp_path)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert all(math.isfinite(row["train/loss"]) for row in rows[1:])


@pytest.mark.parametrize(
    ("sync", "staleness"), [("on_policy", 0), ("interval20", 2), ("offset10", 2), ("offline", 2)]
)
def test_staleness_of_each_schedule(sync, staleness, tmp_path):
    rows = trained(experiment(*SMALL, f"sync={sync}"), tmp_path)
    assert rows[-1]["train/staleness"] == staleness


def trained(exp: Experiment, path: Path) -> list[dict]:
    folder = RunFolder(path)
    folder.start(exp.config(), {})
    prepare(exp).train(folder)
    return folder.metrics()


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


def test_the_papers_legends_can_be_written_down():
    ring = experiment("algo=rec_ring", "clip.high=0.25").clip
    assert (ring.low, ring.high, ring.outer_low, ring.outer_high) == (0.2, 0.25, 0.6, 2.0)
    assert isinstance(experiment("algo=rec_ring_is").weight, weights.ImportanceWeight)


def test_a_choice_on_the_command_line_wins_over_the_preset_in_any_order():
    for order in (("algo=grpo", "clip=dual"), ("clip=dual", "algo=grpo")):
        assert isinstance(experiment(*order).clip, clips.Dual)


def test_values_stand_in_yaml_only_and_every_choice_builds():
    """One choice of each group at a time: their numbers differ."""
    groups = {
        group: [[f"{group}={name}", *UNFINISHED.get(name, [])] for name in names]
        for group, names in choices_by_group().items()
        if group.partition("/")[0] not in ("adapter", "algo", "gpus", "sweep", "scale", "setting")
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


def test_whoever_only_reads_configurations_does_not_wait_for_transformers():
    code = (
        "import sys, rec_experiments.analysis.claims;"
        "print({'transformers', 'datasets', 'wandb', 'math_verify'} & sys.modules.keys())"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert printed.stdout == "set()\n", printed.stderr
