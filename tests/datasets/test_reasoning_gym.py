"""Problems of reasoning-gym.

1. They are the same in every process.
2. The package's own verifiers score: its answers are correct, and partial credit is kept.
3. Unknown data sets and parameters, and a missing package, are one line.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SMALL, experiment, run

from rec_experiments.common.errors import UserError, mistake
from rec_experiments.common.problems import DemonstratedDataset
from rec_experiments.datasets import reasoning_gym as ours

ROOT = Path(__file__).parents[2]
SUMS = (
    "dataset=reasoning_gym", "dataset.name=basic_arithmetic", "dataset.train_problems=31",
    "dataset.eval_problems=10", "+dataset.parameters.max_terms=2", "dataset.answer_tag=null",
    "+dataset.parameters.max_digits=2", "dataset.system_prompt=''",
)  # fmt: skip
WORDS = ("dataset=reasoning_gym", "dataset.train_problems=24", "dataset.eval_problems=8")

pytest.importorskip("reasoning_gym")


def questions(problems):
    return [problem.messages[-1]["content"] for problem in problems]


def test_problems_depend_on_the_seed_alone():
    script = (
        "import sys; from rec_experiments import Experiment;"
        "t, _ = Experiment.compose(*sys.argv[1:]).settings.dataset.load(); print(t)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    printed = subprocess.run(
        [sys.executable, "-c", script, *SUMS], env=environment, capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    here, evaluation = experiment(*SUMS).dataset.load()
    assert printed == f"{here}\n"
    assert (len(here), len(evaluation)) == (31, 10)
    other, _ = experiment(*SUMS, "dataset.data_seed=1").dataset.load()
    assert questions(other) != questions(here)


@pytest.mark.parametrize("name", ["chain_sum", "countdown", "simple_equations", "word_sorting"])
def test_its_own_answers_are_right(name):
    gym = experiment(*WORDS, f"dataset.name={name}").dataset
    train, evaluation = gym.load()
    for problem in train + evaluation:
        assert gym.verify(problem.solution, problem.answer).accuracy == 1
        assert gym.verify(f"<think>x</think>{problem.solution} .", problem.answer).accuracy == 1
        for wrong in ("", "<answer>", "</answer><answer>", "<answer>no</answer>"):
            assert gym.verify(wrong, problem.answer).accuracy == 0


def test_a_composite_mixes_data_sets():
    both = "[{name: lcm, weight: 1, config: {}}, {name: chain_sum, weight: 1, config: {}}]"
    chosen = ("dataset.name=composite", f"+dataset.parameters.datasets={both}")
    gym = experiment(*WORDS, *chosen).dataset
    train, _ = gym.load()
    assert {"LCM" in question for question in questions(train)} == {True, False}
    assert all(gym.verify(p.solution, p.answer).accuracy == 1 for p in train)


def test_without_a_tag_the_whole_response_is_scored():
    gym = experiment(*SUMS).dataset
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
    gym = experiment(*SUMS).dataset
    problem = gym.load()[0][0]
    place = json.loads(problem.answer)
    with pytest.raises(ValueError, match="not the item of the prompt"):
        gym.verify("3", json.dumps({**place, "item": place["item"] + 1}))


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["dataset.name=composite"], "dataset.name=composite: reasoning-gym refuses it"),
        (["dataset.name=chain_some"], "dataset.name=chain_some: reasoning-gym refuses it"),
        (["dataset.name=lcm", "+dataset.parameters.terms=3"], "unexpected keyword argument"),
        (["dataset.name=lcm", "+dataset.parameters.seed=3"], "multiple values for keyword"),
        (["dataset.name=chain_sum", "+dataset.parameters.max_terms=0"], '"max_terms": 0} ('),
        (["dataset.name=lcm", "dataset.data_seed=-1"], "dataset.data_seed=-1: must be at least 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_values_are_one_line(overrides, reason):
    with pytest.raises(UserError) as told:
        experiment("dataset=reasoning_gym", *overrides).dataset.load()
    assert reason in str(told.value)
    assert "\n" not in str(told.value)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    ours._made.cache_clear()
    with pytest.raises(ModuleNotFoundError) as missing:
        experiment(*WORDS, "dataset.name=lcm").dataset.load()
    told = str(mistake(missing.value))
    assert told == "reasoning-gym: is not installed here; python -m pip install reasoning-gym"


def test_the_tiny_model_runs_on_its_problems(tmp_path):
    overrides = [*SMALL[1:], *SUMS, "dataset.verifier_workers=1"]
    assert isinstance(experiment(*overrides).dataset, DemonstratedDataset)
    rows = run(tmp_path, *overrides).metrics()
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert rows[-1]["train/verifier_crashes"] == 0
