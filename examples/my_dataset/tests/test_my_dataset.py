"""MyDataset: its problems and its verifier, composed as in a run."""

import pytest

import rec_experiments
from rec_experiments.common.errors import UserError


@pytest.fixture
def dataset():
    return rec_experiments.Experiment.compose("dataset=my_dataset").settings.dataset


def test_training_and_evaluation_are_disjoint(dataset):
    train, evaluation = ({p.messages[0]["content"] for p in side} for side in dataset.load())
    assert (len(train), len(evaluation)) == (dataset.train_problems, dataset.eval_problems)
    assert not train & evaluation


def test_verifier_accepts_only_sorted_digits(dataset):
    assert dataset.problem("4731").answer == "1347"
    assert dataset.verify("1347", "1347").reward == 1
    for wrong in ("", "4731", "1347 ", "13477"):
        assert dataset.verify(wrong, "1347").reward == 0


def test_half_of_the_demonstrations_are_correct(dataset):
    train, _ = dataset.load()
    shown = dataset.demonstrations(train, 4000, seed=0)
    correct = [dataset.verify(turns[0], train[i].answer).accuracy for i, turns in shown]
    assert 0.5 < sum(correct) / len(correct) < 0.65  # two equal digits may be swapped


def test_too_many_problems_are_refused():
    with pytest.raises(UserError, match=r"dataset\.digits=3: makes fewer prompts"):
        rec_experiments.Experiment.compose("dataset=my_dataset", "dataset.digits=3")
