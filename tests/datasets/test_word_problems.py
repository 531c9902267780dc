"""Word problems: their solutions are right, their splits differ, and the last number counts."""

import re

import pytest
import yaml

from rec_experiments.config import plugins
from rec_experiments.datasets.word_problems import WordProblems


def dataset(**changes):
    values = yaml.safe_load((plugins.CONF / "dataset" / "word_problems.yaml").read_text())
    del values["_target_"]
    return WordProblems(**{**values, "train_problems": 500, "eval_problems": 50, **changes})


@pytest.fixture(scope="module")
def problems():
    return dataset().load()


def test_every_solution_derives_its_answer(problems):
    judge = dataset()
    for problem in [*problems[0], *problems[1]]:
        *steps, last = problem.solution.split(". ")
        value = None
        for step in steps:
            a, sign, b, c = re.fullmatch(r"(\d+) ([-+*]) (\d+) = (\d+)", step).groups()
            assert value in (None, a)
            assert eval(f"{a} {sign} {b}") == int(c)
            assert 1 <= int(c) <= 60
            value = c
        assert last == f"The answer is {problem.answer}."
        assert problem.answer == value
        assert judge.verify(problem.solution, problem.answer).reward

        told = re.findall(r"\d+", problem.messages[0]["content"])
        first, *_ = re.findall(r"\d+", problem.solution)
        assert told == [first, *re.findall(r"[-+*] (\d+)", problem.solution)]


def test_stories_differ_and_no_more_of_them_move_others_to_the_other_split(problems):
    train, held_out = ({p.messages[0]["content"] for p in side} for side in problems)
    assert (len(train), len(held_out)) == (500, 50)
    assert not train & held_out
    assert len({re.sub(r"\d+", "n", story) for story in train}) > 490
    _, same = dataset(train_problems=800).load()
    assert same == problems[1]


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("12 + 9 = 21. The answer is 21.", 1.0),
        ("21", 1.0),
        ("The answer is 21, not 22.", 0.0),
        ("The answer is -21.", 0.0),
        ("The answer is 210.", 0.0),
        ("none", 0.0),
    ],
)
def test_the_last_number_counts(response, reward):
    assert dataset().verify(response, "21").reward == reward
