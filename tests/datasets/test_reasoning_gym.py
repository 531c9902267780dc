"""Problems of reasoning-gym.

1. They are the same in every process, the splits are disjoint, and stages follow each other.
2. The package's own verifiers score: its answers are correct, and partial credit is kept.
3. Unknown data sets and parameters, and a missing package, are one line.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import SMALL, experiment, run

from rec_experiments.datasets import reasoning_gym as ours
from rec_experiments.errors import UserError, mistake
from rec_experiments.types import DemonstratedDataset

ROOT = Path(__file__).parents[2]
STAGES = ("dataset=reasoning_gym_stages", "dataset.train_problems=31", "dataset.eval_problems=10")
WORDS = ("dataset=reasoning_gym", "dataset.train_problems=24", "dataset.eval_problems=8")

pytest.importorskip("reasoning_gym")


def questions(problems):
    return [problem.messages[-1]["content"] for problem in problems]


def test_stages_follow_each_other_and_are_evaluated_in_turn():
    train, evaluation = experiment(*STAGES).dataset.load()
    assert (len(train), len(evaluation)) == (31, 10)
    stages = [json.loads(problem.answer)["stage"] for problem in train]
    assert stages == [0] * 11 + [1] * 10 + [2] * 10
    assert [json.loads(problem.answer)["stage"] for problem in evaluation[:6]] == [0, 1, 2, 0, 1, 2]
    assert questions(train)[30].endswith(", ?")


def test_no_question_is_on_both_sides():
    gym = experiment("dataset=reasoning_gym_stages").dataset
    train, evaluation = gym.load()
    assert not {*questions(train)} & {*questions(evaluation)}
    assert len(train) == gym.train_problems
    assert len(evaluation) == gym.eval_problems


def test_levels_of_a_curriculum_are_stages():
    gym = experiment(*WORDS, "dataset.name=chain_sum", "dataset.levels=[0,3]").dataset
    train, _ = gym.load()
    terms = [question.count("+") + question.count("-") + 1 for question in questions(train)]
    assert {*terms[:12]} == {2}
    assert max(terms[12:]) > 2
    assert gym.describe() == "chain_sum of reasoning-gym, levels 0, 3"
    for problem in train:
        assert gym.verify(problem.solution, problem.answer).accuracy == 1
    fixed = experiment(
        *WORDS, "dataset.name=chain_sum", "dataset.levels=[0,3]", "+dataset.parameters.max_terms=2"
    ).dataset
    assert {
        question.count("+") + question.count("-") for question in questions(fixed.load()[0])
    } == {1}


def test_problems_depend_on_the_seed_alone():
    script = (
        "import sys; from rec_experiments import Experiment;"
        "t, _ = Experiment.compose(*sys.argv[1:]).settings.dataset.load(); print(t)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    printed = subprocess.run(
        [sys.executable, "-c", script, *STAGES], env=environment, capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    here, _ = experiment(*STAGES).dataset.load()
    assert printed == f"{here}\n"
    other, _ = experiment(*STAGES, "dataset.data_seed=1").dataset.load()
    assert questions(other) != questions(here)


EVERY = """
import json, reasoning_gym
from reasoning_gym.factory import DATASETS
made = {name: reasoning_gym.create_dataset(name, seed=0, size=20) for name in DATASETS
        if name != "composite"}
shown = {name: [(data[i]["question"], str(data[i]["answer"])) for i in (0, 7)]
         for name, data in made.items()}
print("\\n" + json.dumps(shown))  # some speak while they are made, and do not end their line
"""


def test_nondeterministic_data_sets_are_refused():
    """Two processes may agree by chance on some of them."""
    first, second = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", EVERY], env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True, text=True, check=True,
            ).stdout.splitlines()[-1]
        )
        for seed in ("1", "2")
    )  # fmt: skip
    differing = {name for name in first if first[name] != second[name]}
    assert differing <= {*ours.NONDETERMINISTIC}
    assert len(differing) > len(ours.NONDETERMINISTIC) / 2


@pytest.mark.parametrize("name", ["chain_sum", "countdown", "simple_equations", "word_sorting"])
def test_its_own_answers_are_right(name):
    gym = experiment(*WORDS, f"dataset.name={name}").dataset
    train, evaluation = gym.load()
    for problem in train + evaluation:
        assert gym.verify(problem.solution, problem.answer).accuracy == 1
        assert gym.verify(f"<think>x</think>{problem.solution} .", problem.answer).accuracy == 1
        for wrong in ("", "<answer>", "</answer><answer>", "<answer>no</answer>"):
            assert gym.verify(wrong, problem.answer).accuracy == 0


def test_without_a_tag_the_whole_response_is_scored():
    gym = experiment(*STAGES).dataset
    problem = gym.load()[0][0]
    given = json.loads(problem.answer)["answer"]
    assert problem.solution == given
    assert gym.verify(given, problem.answer).reward == 1
    assert gym.verify(f"<answer>{given}</answer>", problem.answer).accuracy == 0


def test_partial_credit_is_reward_without_accuracy():
    gym = experiment(*WORDS, "dataset.name=spell_backward").dataset
    problem = gym.load()[0][0]
    word = json.loads(problem.answer)["answer"]
    paid = gym.verify(f"<answer>{word[:-1]}</answer>", problem.answer)
    assert 0 <= paid.reward < 1
    assert paid.accuracy == 0


def test_a_changed_item_is_not_scored():
    gym = experiment(*STAGES).dataset
    problem = gym.load()[0][0]
    place = json.loads(problem.answer)
    with pytest.raises(ValueError, match="not the item of the prompt"):
        gym.verify("3", json.dumps({**place, "item": place["item"] + 1}))


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ([], "dataset.name=null: must be a data set of reasoning-gym"),
        (
            ["dataset.name=chain_some"],
            "dataset.name=chain_some: must be a data set of reasoning-gym; allowed: a",
        ),
        (
            ["dataset.name=lcm", "+dataset.parameters.terms=3"],
            "parameters.terms: no parameter of lcm",
        ),
        (
            ["dataset.name=lcm", "+dataset.parameters.seed=3"],
            "parameters.seed: no parameter of lcm",
        ),
        (["dataset.name=chain_sum", "+dataset.parameters.max_terms=0"], "chain_sum refuses them"),
        (["dataset.name=word_ladder"], "and generate the same items in each process; allowed: ab,"),
        (["dataset.name=lcm", "dataset.data_seed=-1"], "dataset.data_seed=-1: must be at least 0"),
        (["dataset.name=lcm", "dataset.eval_problems=0"], "eval_problems=0: must be at least one"),
        (["dataset.name=lcm", "dataset.levels=[]"], "levels=[]: must list at least one level"),
        (["dataset.name=lcm", "dataset.levels=[99]"], "dataset.levels: 99 must be from 0 to "),
        (["dataset.name=acre", "dataset.levels=[0]"], "reasoning-gym has no curriculum for acre;"),
        (["dataset=reasoning_gym_stages", "dataset.name=lcm"], "dataset.name=lcm: must be a data"),
        (["dataset=reasoning_gym_stages", "dataset.stages=[]"], "dataset.stages: must be at least"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_values_are_one_line(overrides, reason):
    with pytest.raises(UserError) as told:
        experiment("dataset=reasoning_gym", *overrides).dataset.load()
    assert reason in str(told.value)
    assert "\n" not in str(told.value)


def test_too_few_distinct_questions(monkeypatch):
    """As where all of them fall to one side."""
    monkeypatch.setattr(ours, "zlib", SimpleNamespace(crc32=lambda text: 1))
    with pytest.raises(UserError, match="chain_sum has only 0 of 8 distinct"):
        experiment(*WORDS, "dataset.name=chain_sum").dataset.load()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    ours._made.cache_clear()
    with pytest.raises(ModuleNotFoundError) as missing:
        experiment(*WORDS, "dataset.name=lcm").dataset.load()
    told = str(mistake(missing.value))
    assert told == "reasoning-gym: is not installed here; python -m pip install reasoning-gym"


@pytest.mark.parametrize(
    ("total", "parts", "sizes"), [(7, 3, [3, 2, 2]), (6, 3, [2, 2, 2]), (2, 1, [2])]
)
def test_shares_are_nearly_equal(total, parts, sizes):
    assert [ours.share(total, n, parts) for n in range(parts)] == sizes


def test_the_tiny_model_runs_on_the_stages(tmp_path):
    overrides = [*SMALL[1:], *STAGES, "dataset.verifier_workers=1"]
    assert isinstance(experiment(*overrides).dataset, DemonstratedDataset)
    rows = run(tmp_path, *overrides).metrics()
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert rows[-1]["train/verifier_crashes"] == 0
