"""MyTask: its problems and its verifier, as a run would compose them."""

import pytest

import rec_experiments
from rec_experiments.errors import UserError


@pytest.fixture
def task():
    return rec_experiments.Experiment.compose("dataset=my_task").settings.dataset


def test_no_problem_is_trained_on_and_evaluated(task):
    train, evaluation = ({p.messages[0]["content"] for p in side} for side in task.load())
    assert (len(train), len(evaluation)) == (task.train_problems, task.eval_problems)
    assert not train & evaluation


def test_the_verifier_accepts_sorted_digits_alone(task):
    assert task.problem("4731").answer == "1347"
    assert task.verify("1347", "1347").reward == 1
    for wrong in ("", "4731", "1347 ", "13477"):
        assert task.verify(wrong, "1347").reward == 0


def test_demonstrations_are_right_half_of_the_time(task):
    train, _ = task.load()
    shown = task.demonstrations(train, 4000, seed=0)
    right = sum(task.verify(turns[0], train[i].answer).accuracy for i, turns in shown) / len(shown)
    assert 0.5 < right < 0.65  # two equal digits may be swapped


def test_too_many_problems_are_refused():
    with pytest.raises(UserError, match=r"dataset\.digits=3: makes fewer prompts"):
        rec_experiments.Experiment.compose("dataset=my_task", "dataset.digits=3")
