"""The split of generated problems into training and evaluation problems."""

import pytest

from rec_experiments.common.errors import UserError
from rec_experiments.common.problems import Problem
from rec_experiments.datasets.text import GeneratedDataset


def made(train, evaluation):
    return GeneratedDataset(
        system_prompt="", max_prompt_tokens=64, long_prompts="refuse", max_response_tokens=64,
        verifier_workers=1, verifier_timeout=1.0, train_problems=train, eval_problems=evaluation,
    )  # fmt: skip


def items(number):
    """As many items as texts, each text twice."""
    texts = [f"What is {n // 2} + 1?" for n in range(number)]
    return [(text, Problem(({"role": "user", "content": text},), "")) for text in texts]


def test_no_text_is_in_both_splits_and_one_in_eight_is_held_out():
    train, held_out = made(600, 60).split(items(1600), "sums")
    assert (len(train), len(held_out)) == (600, 60)
    assert not {each.messages[0]["content"] for each in train} & {
        each.messages[0]["content"] for each in held_out
    }
    with pytest.raises(UserError, match=r"dataset.eval_problems=400: sums has only \d+ of 400"):
        made(600, 400).split(items(1600), "sums")
    with pytest.raises(UserError, match=r"dataset.train_problems=1600: sums has only"):
        made(1600, 60).split(items(1600), "sums")


def test_more_items_change_no_problem():
    short, long = (made(100, 10).split(items(number), "sums") for number in (400, 1600))
    assert short == long
