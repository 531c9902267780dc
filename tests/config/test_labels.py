"""Labels of runs.

1. A label names the method and what the command changed, whatever the order of its words.
2. Words that do not change a method, the schedule and the seed are no part of its name.
3. `name` replaces the label of the method, and is no part of a run's identity.
"""

import pytest
from conftest import resolve

from rec_experiments.config.identity import run_path
from rec_experiments.config.labels import (
    methods,
    run_label,
    run_labels,
    tracked_name,
    without_shared,
)

PYTHON = ["/usr/bin/python", "-m", "rec_experiments"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "REC-OneSide-NoIS"),
        (["clip.high=2.0"], "REC-OneSide-NoIS · clip.high=2.0"),
        (
            ["optimizer.learning_rate=1e-4", "clip.high=2.0"],
            "REC-OneSide-NoIS · clip.high=2.0 · lr=1e-4",
        ),
        (["clip.high=2.0", "clip.high=null"], "REC-OneSide-NoIS · clip.high=null"),
        (["++steps=4", "model=pretrained", "model.path=/somewhere/tiny"],
         "REC-OneSide-NoIS · model=pretrained · model.path=tiny · steps=4"),
        (["sync.phase=own"], "REC-OneSide-NoIS · sync.phase=own"),
        (["setting=mini/gsm8k"], "REC-OneSide-NoIS · reduction modulo 8"),
        (["setting=mini/gsm8k_twice"], "REC-OneSide-NoIS · reduction modulo 8 twice"),
        (["setting=paper/gsm8k"], "REC-OneSide-NoIS · GSM8K"),
        (["setting=of_a_package"], "REC-OneSide-NoIS · setting=of_a_package"),
    ],
)  # fmt: skip
def test_a_method_is_its_preset_and_what_was_changed(words, said):
    config = resolve()
    assert methods([(config, words)]) == methods([(config, [*PYTHON, *words])]) == [said]


def test_what_does_not_change_a_method_is_left_out():
    words = ["algo=grpo", "seed=3", "sync=offset10", "sync.offset=4", "output_dir=x", "run_dir=y"]
    config = resolve(*words)
    more = ["tracking=wandb", "tracking.project=p", "hydra.verbose=true", "sweep=fig3", "--f=1"]
    assert methods([(config, [*words, *more])]) == ["GRPO"]
    assert run_label(config, words) == "GRPO · offset 4 · seed 3"


def test_a_name_replaces_the_label_and_changes_no_folder():
    config = resolve("name=mine", "clip.high=2.0")
    assert methods([(config, ["name=mine", "clip.high=2.0"])]) == ["mine"]
    assert run_path(config) == run_path(resolve("clip.high=2.0"))


def test_runs_that_their_commands_do_not_tell_apart_are_told_apart_by_their_values():
    """By the fewest keys, and only where a label is shared."""
    words = [
        ["algo=grpo"],
        ["algo=grpo", "dataset=arithmetic"],
        ["algo=grpo", "dataset=arithmetic", "steps=7"],
        ["algo=grpo", "dataset=arithmetic", "steps=7", "seed=5"],
        ["algo=grpo", "sync=offline"],
        ["algo=opmd", "eval_every=7"],
    ]
    runs = [(resolve(*each), each) for each in words]
    assert methods(runs) == [
        "GRPO", "GRPO · dataset=arithmetic", "GRPO · dataset=arithmetic · steps=7",
        "GRPO · dataset=arithmetic · steps=7", "GRPO", "OPMD",
    ]  # fmt: skip
    silent = [(config, []) for config, _ in runs]
    steps = runs[0][0]["steps"]
    assert methods(silent) == [
        f"GRPO · steps={steps} · dataset=Reduction",
        f"GRPO · steps={steps} · dataset=Arithmetic",
        "GRPO · steps=7 · dataset=Arithmetic",
        "GRPO · steps=7 · dataset=Arithmetic",
        f"GRPO · steps={steps} · dataset=Reduction",
        "OPMD",
    ]
    for named in (runs, silent):
        assert len({*run_labels(named)}) == len(runs)


def test_one_name_for_several_runs_is_told_apart():
    runs = [(resolve("name=mine", f"seed={seed}"), []) for seed in (0, 1)]
    assert run_labels(runs) == ["mine · seed=0", "mine · seed=1"]


@pytest.mark.parametrize(
    ("labels", "short", "shared"),
    [
        (["A · lr=1 · seed 0", "B · lr=1 · seed 0"], ["A", "B"], "lr=1 · seed 0"),
        (["A · lr=1", "B · lr=2"], ["A · lr=1", "B · lr=2"], ""),
        (["A · lr=1"], ["A · lr=1"], ""),
        ([], [], ""),
    ],
)
def test_what_all_runs_of_a_list_share_is_said_once(labels, short, shared):
    assert without_shared(labels) == (short, shared)


def test_trackers_have_a_name_for_each_folder(tmp_path):
    config = resolve("algo=grpo", "clip.high=2.0")
    assert tracked_name(config, ["clip.high=2.0"], tmp_path / "grpo_m20-n0_seed0_12345678") == (
        "GRPO · clip.high=2.0 · interval 20 · seed 0 · 12345678"
    )
    assert tracked_name(resolve("name=mine"), [], tmp_path / "a") == "mine"
