"""Prompts longer than the limit are refused, or dropped and counted."""

from types import SimpleNamespace

import pytest
from conftest import experiment

from rec_experiments.common.errors import UserError
from rec_experiments.common.problems import Problem
from rec_experiments.runs.checks import short_enough

PROBLEMS = [
    Problem(messages=({"role": "user", "content": "x" * n},), answer="", solution="")
    for n in (3, 9, 5, 8)
]
CHAT = SimpleNamespace(encode_all=lambda prompts: [list(p[-1]["content"]) for p in prompts])


def chosen(*overrides):
    said = []
    exp = experiment("dataset=gsm8k", "dataset.max_prompt_tokens=5", *overrides)
    kept = short_enough(exp.dataset, CHAT, PROBLEMS, "training", said.append)
    return kept, said


def test_they_are_dropped_and_counted():
    kept, said = chosen("dataset.long_prompts=drop")
    assert kept == [PROBLEMS[0], PROBLEMS[2]]
    assert said == ["dropped 2 of 4 training prompts: longer than dataset.max_prompt_tokens=5"]


def test_they_are_refused_by_default():
    with pytest.raises(UserError, match=r"a prompt has 9 tokens .* or use dataset.long_prompts=dr"):
        chosen()


def test_a_data_set_without_short_prompts_is_refused():
    with pytest.raises(UserError, match="a prompt has 3 tokens"):
        chosen("dataset.long_prompts=drop", "dataset.max_prompt_tokens=2")


def test_short_prompts_are_kept():
    assert chosen("dataset.max_prompt_tokens=9") == (PROBLEMS, [])
