"""The configuration: presets, choices, defaults, and what is refused.

1. Three resolved configurations are on file: a changed default shows in review.
2. Every preset runs under all schedules, and composes with every clip that makes sense.
3. A value stands once: dataclasses have no defaults of their own.
4. Reading a configuration loads none of the large libraries but torch.
"""

import dataclasses
import functools
import math
import subprocess
import sys

import pytest
from conftest import SMALL, experiment, resolve
from omegaconf import OmegaConf
from update_golden import CONFIGS, GOLDEN

from rec_experiments import sweeps
from rec_experiments.config import schema
from rec_experiments.config.experiment import Experiment
from rec_experiments.config.identity import run_path
from rec_experiments.errors import UserError
from rec_experiments.runs.prepare import prepare
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.types import Piece

PRESETS = sorted(path.stem for path in (schema.CONF / "algo").glob("*.yaml"))
PAPER = {
    "reinforce", "grpo", "rec_oneside_is", "rec_oneside_nois", "rec_twoside_is",
    "rec_twoside_nois", "rec_ring_is", "rec_ring", "opmd", "asymre", "pairwise", "red_drop",
    "red_weight",
}  # fmt: skip
FIELD = {
    "a3po", "bapo", "cispo", "copg", "dapo", "decoupled_ppo", "dppo_kl", "dppo_tv", "dr_grpo",
    "gmpo", "grpo_kl", "grpo_zero_variance", "gspo", "icepop", "m2po", "max_at_k",
    "max_at_k_off_policy", "maxrl", "mis", "mix_ppg", "oapl", "ppo_ewma", "rloo", "sapo", "sfpo",
    "sppo", "tis", "topr", "vespo",
}  # fmt: skip
SCHEDULES = ("on_policy", "interval20", "offset10", "offline")
# What a choice asks for that it has no value of.
UNFINISHED = {
    "pretrained": ["model.path=x"],
    "own": ["dataset.path=x", "dataset.verifier=my_module.judge"],
    "reasoning_gym": ["dataset.name=chain_sum"],
}


def test_the_presets_of_the_paper_and_the_field_are_there():
    assert set(PRESETS) == PAPER | FIELD


@pytest.mark.parametrize("name", CONFIGS)
def test_resolved_configuration_is_the_one_on_file(name):
    golden = OmegaConf.to_container(OmegaConf.load(GOLDEN / f"{name}.yaml"))
    assert resolve(*CONFIGS[name]) == golden


def test_a_paper_setting_has_the_gpus_that_its_model_fits_on():
    for setting, gpus in {"gsm8k": 1, "toolace": 1, "guru": 8, "math": 8}.items():
        assert sweeps.gpus_of(resolve(f"setting=paper/{setting}")) == gpus


@functools.cache
def schedule_of(sync):
    return experiment(f"sync={sync}").sync


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_runs_under_every_schedule(preset, tmp_path):
    """Composed once: most of so small a run is composing."""
    fewer = ["buffer.reuse=2"] if preset == "mix_ppg" else []  # groups of a batch of 4
    composed = experiment(*SMALL, f"algo={preset}", *fewer)
    for sync in SCHEDULES:
        exp = dataclasses.replace(composed, sync=schedule_of(sync))
        folder = RunFolder(tmp_path / sync)
        folder.start(exp.config(), {})
        prepare(exp).train(folder)
        rows = folder.metrics()
        assert [row["step"] for row in rows] == [0, 1, 2, 3], sync
        assert all(math.isfinite(row["train/loss"]) for row in rows[1:]), sync
        if preset in PAPER:  # one gradient step a batch
            assert rows[-1]["train/staleness"] == (0 if sync == "on_policy" else 2), sync


def test_a_schedule_that_is_set_afterwards_is_the_one_composed():
    for sync in SCHEDULES:
        later = dataclasses.replace(experiment("algo=grpo"), sync=schedule_of(sync))
        assert later.config() == experiment("algo=grpo", f"sync={sync}").config()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_composes_with_other_clips(preset):
    """Even with those that share no field with its own."""
    for clip in ("none", "binary_kl"):
        assert experiment(f"algo={preset}", f"clip={clip}").clip.kind == clip


def test_no_more_of_a_group_are_best_than_it_has():
    assert experiment("algo=max_at_k", "advantage.k=8", "group_size=8").advantage.k == 8
    with pytest.raises(UserError, match=r"^advantage\.k=9: must be at most group_size=8$"):
        experiment("algo=max_at_k", "advantage.k=9", "group_size=8")


def test_a_weight_reads_the_bounds_of_its_clip():
    weight = experiment("algo=gmpo", "clip.log_low=0.3").weight
    assert (weight.log_low, weight.log_high) == (0.3, 0.4)
    weight = experiment("algo=gmpo", "clip=two_side").weight
    assert (weight.log_low, weight.log_high) == (None, None)


def test_the_papers_legends_can_be_written_down():
    ring = experiment("algo=rec_ring", "clip.high=0.25").clip
    assert (ring.low, ring.high, ring.outer_low, ring.outer_high) == (0.2, 0.25, 0.6, 2.0)
    assert experiment("algo=rec_ring_is").algorithm().weight.kind == "importance"


def test_a_choice_on_the_command_line_wins_over_the_preset_in_any_order():
    for order in (("algo=grpo", "clip=dual"), ("clip=dual", "algo=grpo")):
        assert experiment(*order).clip.kind == "dual"


def test_values_stand_in_yaml_only():
    classes = [cls for nodes in schema.SCHEMAS.values() for cls in nodes.values()]
    for cls in [*classes, Experiment]:
        for field in dataclasses.fields(cls):
            if not (issubclass(cls, Piece) and field.name == "kind"):
                assert field.default is field.default_factory is dataclasses.MISSING, (cls, field)


def test_every_yaml_of_every_group_composes():
    for folder in schema.CONF.iterdir():
        if folder.is_dir() and folder.name not in ("hydra", "sweep", "scale", "setting"):
            for file in folder.glob("*.yaml"):
                extra = UNFINISHED.get(file.stem, [])
                extra = [*extra, *(["ratio=proximal"] * (folder.name == "proximal"))]  # reads it
                experiment(f"{folder.name}={file.stem}", *extra)


def test_run_folders_differ_exactly_when_the_experiment_does(tmp_path):
    base = run_path(resolve())
    assert run_path(resolve("tracking=wandb")).name == base.name
    assert run_path(resolve(f"output_dir={tmp_path}")).name == base.name
    different = [
        (), ("seed=1",), ("clip.high=2.0",), ("sync=offset10",), ("weight=importance",),
        ("clip=two_side",), ("steps=99",), ("optimizer.learning_rate=1e-4",), ("sync.offset=1",),
        ("aggregation=sequence_mean",), ("regularizer=opmd",), ("regularizer=opmd_token",),
    ]  # fmt: skip
    names = {run_path(resolve(*overrides)).name for overrides in different}
    assert len(names) == len(different)


def test_a_kind_cannot_be_overwritten():
    with pytest.raises(UserError, match=r"clip\.kind=ring: is set by the group's choice"):
        experiment("clip.kind=ring")


def test_whoever_only_reads_configurations_does_not_wait_for_transformers():
    code = (
        "import sys, rec_experiments.analysis.claims, rec_experiments.analysis.results.figure_data;"
        "print({'transformers', 'datasets', 'wandb', 'math_verify'} & sys.modules.keys())"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert printed.stdout == "set()\n", printed.stderr
