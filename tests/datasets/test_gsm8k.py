"""GSM8K: what it loads, its errors for bad files, and that its gold solutions score.

The full files are found through REC_DATA, a folder that holds gsm8k/train.jsonl and test.jsonl.
"""

import dataclasses
import json
import os
from pathlib import Path

import pytest
from conftest import experiment

from rec_experiments.cli.check import check_gold
from rec_experiments.common.problems import Problem
from rec_experiments.datasets.math_problems import MathProblems
from rec_experiments.datasets.verifiers.math_answer import well_formed
from rec_experiments.datasets.verifiers.verifier_pool import inline_verifier

ROWS = [
    {
        "question": "How many clips?",
        "answer": "48/2 = <<48/2=24>>24\n48+24 = <<48+24=72>>72\n#### 72",
    },
    {"question": "How much?", "answer": "It is $1,000 + $80.\n#### 1,080"},
]


def gsm8k_of(path: object, **changes: object) -> MathProblems:
    dataset = experiment("dataset=gsm8k").dataset
    return dataclasses.replace(dataset, path=None if path is None else str(path), **changes)


def write(folder: Path, train: str, test: str) -> Path:
    (folder / "train.jsonl").write_text(train)
    (folder / "test.jsonl").write_text(test)
    return folder


def lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_problems(tmp_path: Path) -> None:
    gsm8k = gsm8k_of(write(tmp_path, lines(ROWS), lines(ROWS[1:]) + "\n"))
    train, evaluation = gsm8k.load()
    assert [problem.answer for problem in train] == ["72", "1080"]
    assert evaluation == train[1:]
    first = train[0]
    assert [message["role"] for message in first.messages] == ["system", "user"]
    assert first.messages[0]["content"] == gsm8k.system_prompt
    assert first.messages[1]["content"] == "How many clips?"
    assert first.solution == ("<think>\n48/2 = 24\n48+24 = 72\n</think>\n<answer>\n72\n</answer>")


def test_the_bonus_reaches_the_reward(tmp_path: Path) -> None:
    gsm8k = gsm8k_of(tmp_path, format_bonus=0.1)
    assert gsm8k.verify("<think>a</think><answer>72</answer>", "72").reward == 1.1
    assert gsm8k.verify("72", "73").reward == -0.1


def test_check_gold_names_what_is_rejected() -> None:
    right = Problem((), "72", "<answer>72</answer>")
    wrong = Problem((), "72", "<answer>73</answer>")
    assert check_gold([right, wrong, right], inline_verifier(gsm8k_of(None).verify)) == [wrong]


EVERY = 40  # one in so many of the real problems is tried with other spellings and answers


@pytest.fixture(scope="module")
def real() -> MathProblems:
    if "REC_DATA" not in os.environ:
        pytest.skip("REC_DATA is not set: no folder with gsm8k/train.jsonl and test.jsonl")
    return gsm8k_of(Path(os.environ["REC_DATA"]) / "gsm8k", format_bonus=0.1)


@pytest.fixture(scope="module")
def some(real: MathProblems) -> list[Problem]:
    train, evaluation = real.load()
    assert (len(train), len(evaluation)) == (7473, 1319)
    assert all(well_formed(problem.solution) for problem in train + evaluation)
    return (train + evaluation)[::EVERY]


def accuracies(real: MathProblems, some: list[Problem], answer) -> set[float]:
    """Those of responses whose answer is made from the gold answer."""
    items = [(f"<answer>{answer(p.answer)}</answer>", p.answer) for p in some]
    return {result.accuracy for result in inline_verifier(real.verify)(items)}


def test_gold_solutions_score_and_others_do_not(real: MathProblems, some: list[Problem]) -> None:
    assert check_gold(some, inline_verifier(real.verify)) == []
    for change in (lambda n: n + 1, lambda n: 10 * n + 1, lambda n: -n - 1):
        assert accuracies(real, some, lambda gold, change=change: change(int(gold))) == {0}
