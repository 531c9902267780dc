"""Word problems: their solutions are right, their splits differ, and the last number counts."""

import re

import pytest
import yaml

from rec_experiments.config import schema
from rec_experiments.datasets.word_problems import WordProblems


def dataset(**changes):
    values = yaml.safe_load((schema.CONF / "dataset" / "word_problems.yaml").read_text())
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


def test_numbers_of_the_derivation_are_in_the_story(problems):
    for problem in problems[0]:
        told = re.findall(r"\d+", problem.messages[0]["content"])
        first, *_ = re.findall(r"\d+", problem.solution)
        used = re.findall(r"[-+*] (\d+)", problem.solution)
        assert told == [first, *used]


def test_no_story_is_in_both_splits(problems):
    train, held_out = ({p.messages[0]["content"] for p in side} for side in problems)
    assert len(train) == 500
    assert len(held_out) == 50
    assert not train & held_out


def test_more_problems_do_not_move_others_to_the_other_split(problems):
    _, held_out = dataset(train_problems=800).load()
    assert held_out == problems[1]


def test_stories_differ_in_their_words(problems):
    shapes = {re.sub(r"\d+", "n", p.messages[0]["content"]) for p in problems[0]}
    assert len(shapes) > 490


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
