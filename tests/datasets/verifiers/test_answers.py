"""What counts as the gold answer, where it is a number and where it is an expression.

1. Hand-written answers, each with what makes it right or wrong: the files in tests/answers.
2. A number in any usual spelling is itself and no other; two numbers are none.
3. Nothing makes a verifier raise, or hang on a number.
4. A data set chooses one of the two.
"""

import dataclasses
import re
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from conftest import experiment
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rec_experiments.datasets.verifiers import math_answer
from rec_experiments.datasets.verifiers.math_answer import same_expression, same_number

SAME = {"number": same_number, "expression": same_expression}


def right(response: str, answer: str, answers: str) -> bool:
    return math_answer.verify(response, answer, 0.0, SAME[answers]).accuracy == 1


# 1. Hand-written answers


def cases(name: str) -> list:
    """Gold answer and response of each case of a file, named after what makes it right or wrong."""
    text = (Path(__file__).parent / "answers" / f"{name}.yaml").read_text(encoding="utf-8")
    reasons = yaml.load(text, yaml.BaseLoader)
    return [
        pytest.param(gold, response, id=f"{reason}-{response!a}-{number}")
        for reason, pairs in reasons.items()
        for number, (gold, response) in enumerate(pairs)
    ]


def tagged(response: str) -> str:
    return response if "<answer>" in response.lower() else f"<answer>{response}</answer>"


@pytest.mark.parametrize(("gold", "response"), cases("number_right"))
def test_right_where_a_number_is_asked_for(gold: str, response: str) -> None:
    assert right(response, gold, "number")
    assert right(tagged(response), gold, "number")


@pytest.mark.parametrize(("gold", "response"), cases("number_wrong"))
def test_wrong_where_a_number_is_asked_for(gold: str, response: str) -> None:
    assert not right(response, gold, "number")
    assert not right(tagged(response), gold, "number")


@pytest.mark.parametrize(("gold", "response"), cases("expression_right"))
def test_right_where_an_expression_is_asked_for(gold: str, response: str) -> None:
    assert right(response, gold, "expression")


@pytest.mark.parametrize(("gold", "response"), cases("expression_wrong"))
def test_wrong_where_an_expression_is_asked_for(gold: str, response: str) -> None:
    assert not right(response, gold, "expression")
    assert not right(tagged(response), gold, "expression")


# 2. Spellings

NUMBERS = st.decimals(-(10**12), 10**12, places=2) | st.integers(-(10**12), 10**12).map(Decimal)
FORMS = st.sampled_from(["{}", "{:,}"])
AFFIXES = st.sampled_from(
    ["{}", "${}", "\\${}", "{}%", "{}\\%", "{} dollars", "{} km/h", "{}kg", "{}\\text{{ cm}}^2"]
)
WRAPPINGS = st.sampled_from(
    ["{}", "${}$", "\\({}\\)", "\\[{}\\]", "**{}**", "\\text{{{}}}", "\\boxed{{{}}}"]
)
PHRASES = st.sampled_from(
    [
        "{}",
        " {} ",
        "{}.",
        "x = {}",
        "Total: {}",
        "The answer is {}.",
        "#### {}",
        "It costs {} in all",
    ]
)


@settings(deadline=None)
@example(Decimal(1000), "{:,}", "{}", "\\({}\\)", "{}", "number")
@example(Decimal(1000), "{:,}", "{}", "\\text{{{}}}", "{}.", "number")
@given(NUMBERS, FORMS, AFFIXES, WRAPPINGS, PHRASES, st.sampled_from(list(SAME)))
def test_a_spelled_number_is_itself_and_no_neighbour(
    value: Decimal, form: str, affix: str, wrapping: str, phrase: str, answers: str
) -> None:
    text = phrase.format(wrapping.format(affix.format(form.format(value))))
    for final in (text, f"<think>{value + 1}</think><answer>{text}</answer>"):
        assert right(final, str(value), answers)
        assert not right(final, str(value + 1), answers)
        assert not right(final, str(value - 1), answers)


JOINED = ["{} or {}", "{}, {}", "{} and {}", "{} to {}", "{}; {}", "{} = {}", "{}\n{}"]


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(JOINED))
def test_two_numbers_are_neither(one: int, other: int, joined: str) -> None:
    assume(one != other)
    for answers in SAME:
        for gold in (one, other):
            assert not right(tagged(joined.format(one, other)), str(gold), answers)


# 3. Hostile responses

LONG = 100_000
HOSTILE = {
    "digits": "7" * LONG,
    "spaced digits": "1 " * LONG,
    "thousands": "1,000" * LONG,
    "zeros": "0" * LONG + "18",
    "words": "a " * LONG + "18",
    "spaces inside": "18" + " " * LONG + "20",
    "stars": "*" * LONG + "18",
    "signs": "-" * LONG + "18",
    "dots": "18" + "." * LONG,
    "braces": "{" * LONG + "18",
    "nested braces": "{" * LONG + "18" + "}" * LONG,
    "nested styles": "\\text{" * LONG + "18" + "}" * LONG,
    "nested fractions": "\\frac{1}{" * LONG + "18" + "}" * LONG,
    "boxes": "\\boxed{" * LONG,
    "nested boxes": "\\boxed{" * LONG + "}" * LONG,
    "parentheses": "(" * LONG + "18" + ")" * LONG,
    "tags": "<answer>" * LONG,
    "marks": "####" * LONG,
    "commas": ", " * LONG,
    "equal signs": "=" * LONG + "20 = 18",
    "a surrogate": "\ud800" * LONG,
    "combining marks": "18" + "\u0338" * LONG,
    "zero width": "1" + "\u200b" * LONG + "8",
}


@pytest.mark.parametrize("answers", SAME)
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_long_responses_are_wrong(text: str, answers: str) -> None:
    assert not right(text, "18", answers)
    assert not right(tagged(text), "18", answers)


TOWERS = ["9^9^9^9^9", "$9^{9^{9^{9^{9}}}}$", "100000000!", "9**9**9**9", "\\boxed{99999!!!!}"]


@pytest.mark.parametrize("text", TOWERS)
def test_no_arithmetic_is_done_for_a_number(text: str) -> None:
    assert not right(tagged(text), "18", "number")


PIECES = [*"18 -.,/$\\{}()^", "\\frac", "\\text{"]


@settings(deadline=None)
@given(
    st.text() | st.text(st.characters(categories=["Cs", "Cf", "Nd", "No"])),
    st.sampled_from(["18", "-0.5", "", "\\frac12", "{", "1/0", "\ud800"]),
)
def test_no_text_makes_it_raise(text: str, gold: str) -> None:
    for response in (text, tagged(text), f"{text}18{text}", f"\\boxed{{{text}18}}"):
        right(response, gold, "number")


@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_no_pieces_of_latex_make_it_raise(text: str) -> None:
    assume(not re.search(r"\^.*\^", text))  # a tower needs the judge's deadline
    right(tagged(text), "18", "number")
    right(tagged(text), "\\frac12", "expression")


# 4. The choice


@pytest.mark.parametrize(
    ("name", "answers"),
    [
        ("gsm8k", "number"),
        ("aime24", "number"),
        ("math", "expression"),
        ("guru_math", "expression"),
        ("deepscaler", "expression"),
    ],
)
def test_each_data_set_has_its_choice(name: str, answers: str) -> None:
    task = experiment(f"dataset={name}").dataset
    assert task.answers == answers
    assert task.verify("\\boxed{18}", "18").accuracy == 1
    assert task.verify("\\boxed{36/2}", "18").accuracy == (answers == "expression")


def test_another_choice_names_the_key_and_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=r"answers\n.*'number' or 'expression'"):
        dataclasses.replace(experiment("dataset=gsm8k").dataset, answers="exact")
