"""Reduction: the verifier accepts every correct derivation and nothing else."""

import itertools

import numpy as np
import pytest
from conftest import experiment
from hypothesis import given
from hypothesis import strategies as st

from rec_experiments.common import rng
from rec_experiments.datasets.arithmetic import OPERATORS, Author
from rec_experiments.datasets.reduction import Reduction, Shortcuts, is_reduction, read

LISTS = st.lists(st.integers(0, 7), min_size=3, max_size=5)


@pytest.fixture(scope="module")
def dataset() -> Reduction:
    return experiment("dataset=reduction").dataset


def derivations(operator: str, numbers: tuple[int, ...], modulus: int) -> set[str]:
    """All correct derivations, by trying every ordered pair at each step."""
    if len(numbers) == 1:
        return {f"#{numbers[0]}"}
    found = set()
    for i, j in itertools.permutations(range(len(numbers)), 2):
        rest = [n for k, n in enumerate(numbers) if k not in (i, j)]
        result = OPERATORS[operator](numbers[i], numbers[j]) % modulus
        step = f"{numbers[i]}{operator}{numbers[j]}={result};"
        found |= {step + tail for tail in derivations(operator, (*rest, result), modulus)}
    return found


@given(numbers=LISTS.filter(lambda numbers: len(numbers) < 5), operator=st.sampled_from("+*"))
def test_every_correct_derivation_is_accepted(numbers: list[int], operator: str) -> None:
    found = derivations(operator, tuple(numbers), 8)
    assert all(is_reduction(each, operator, numbers, 8) for each in found)
    assert len({each.rpartition("#")[2] for each in found}) == 1  # the order does not matter


@given(numbers=LISTS, operator=st.sampled_from("+*"), data=st.data())
def test_one_changed_character(numbers: list[int], operator: str, data: st.DataObject) -> None:
    numbers = numbers[:4]
    every = derivations(operator, tuple(numbers), 8)
    response = data.draw(st.sampled_from(sorted(every)))
    place = data.draw(st.integers(0, len(response) - 1))
    changed = (
        response[:place] + data.draw(st.sampled_from("01234567+*=;# x")) + response[place + 1 :]
    )
    assert is_reduction(changed, operator, numbers, 8) is (changed in every)


@pytest.mark.parametrize(
    ("response", "numbers", "most", "accepted"),
    [
        ("3+4=7;7+2=1;#1", [3, 4, 2], 2, True),
        ("3+4=7;7+2=1", [3, 4, 2], 2, False),  # no answer
        ("3+4=7;3+2=5;#5", [3, 4, 2], 2, False),  # a number used twice
        ("3+4=7;7+2=1;1+0=1;#1", [3, 4, 2], 2, False),  # a number that is not there
        ("3+4=7;7+2=1;#1\n", [3, 4, 2], 2, False),
        ("3+4=0;0+2=2;#2", [3, 4, 2], 2, False),  # a wrong fact, consistently used
        ("٣+4=7;7+2=1;#1", [3, 4, 2], 2, False),  # a digit of another script
        ("3+3=6;6+3=1;#1", [3, 3, 3], 2, True),  # a number that the list has twice
        ("3+3=6;6+3=1;#1", [3, 3, 6], 2, False),
        ("3+4+2=1;#1", [3, 4, 2], 3, True),
        ("3+4+2=1;#1", [3, 4, 2], 2, False),
        ("3+4=7;7+2=1;#1", [3, 4, 2], 3, True),
        ("3+4*2=6;#6", [3, 4, 2], 3, False),
        ("3=3;3+4+2=1;#1", [3, 4, 2], 3, False),
        ("3+4+=7;7+2=1;#1", [3, 4, 2], 3, False),
    ],
)
def test_lists_and_steps(response: str, numbers: list[int], most: int, accepted: bool) -> None:
    assert is_reduction(response, "+", numbers, 8, most) is accepted


def test_problems_and_their_solutions(dataset: Reduction) -> None:
    train, held_out = dataset.load()
    assert (len(train), len(held_out)) == (dataset.train_problems, dataset.eval_problems)
    for problem in [*train, *held_out]:
        prompt = problem.messages[0]["content"]
        assert problem.answer == prompt
        assert problem.expected == f"#{problem.solution.rpartition('#')[2]}" != prompt
        assert dataset.verify(problem.solution, problem.answer).reward == 1.0
        assert dataset.min_steps + 1 <= len(read(prompt)[1]) <= dataset.max_steps + 1
    lists = [{"".join(sorted(p.answer)) for p in side} for side in (train, held_out)]
    assert not lists[0] & lists[1]  # not even in another order


def test_the_author_uses_all_orders_and_errs_as_configured(dataset: Reduction) -> None:
    train, _ = dataset.load()
    prompts = [p for p in train if len(read(p.answer)[1]) == 3][:1]
    shown = {
        dataset.written(prompts[0].answer, Author(dataset, rng.generator(0, rng.TASK, i)))[0][:3]
        for i in range(300)
    }
    operator, numbers = read(prompts[0].answer)
    assert shown == {f"{a}{operator}{b}" for a, b in itertools.permutations(numbers, 2)}
    steps = [
        step
        for i, turns in dataset.demonstrations(train, 2000, seed=0)
        for step in turns[0].split(";")[:-1]
    ]
    wrong = np.mean([OPERATORS[s[1]](int(s[0]), int(s[2])) % 8 != int(s[4]) for s in steps])
    expected = (
        dataset.hard_share * dataset.hard_error + (1 - dataset.hard_share) * dataset.easy_error
    )
    assert abs(wrong - expected) < 0.1  # operands are not all equally frequent


def test_shortcuts_are_of_many_lengths() -> None:
    """One prompt has derivations of different lengths, and a perfect author's are all accepted."""
    dataset = experiment(
        "dataset=shortcuts", "dataset.hard_share=0", "dataset.easy_error=0"
    ).dataset
    assert isinstance(dataset, Shortcuts)
    author = Author(dataset, rng.generator(0, rng.TASK, 1))
    written = {dataset.written("+31321230=", author)[0] for _ in range(100)}
    assert all(dataset.verify(each, "+31321230=").reward == 1.0 for each in written)
    assert {len(each) for each in written} == {8 * n + 6 * (7 - 2 * n) + 2 for n in range(4)}
