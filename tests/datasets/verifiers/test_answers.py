"""What counts as the gold answer, where it is a number and where it is an expression.

1. Hand-written answers, each with what makes it right or wrong: the files in `answers`. Random
   pairs whose maker knows which are equal (make test-verifiers judges more of them).
2. A number in any usual spelling is itself and no other.
3. Nothing makes a verifier raise, or hang on a number.
4. A data set chooses one of the two.
"""

import re
from decimal import Decimal
from pathlib import Path

import pytest
import yaml
from conftest import experiment
from fuzz import KINDS, cases
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rec_experiments.datasets.verifiers import marks
from rec_experiments.datasets.verifiers.expressions import same_expression
from rec_experiments.datasets.verifiers.numbers import same_number

SAME = {"number": same_number, "expression": same_expression}


def right(response: str, answer: str, answers: str) -> bool:
    return marks.verify(response, answer, 0.0, SAME[answers]).accuracy == 1


# 1. Hand-written answers


def tagged(response: str) -> str:
    return response if "<answer>" in response.lower() else f"<answer>{response}</answer>"


@pytest.mark.parametrize("result", ["right", "wrong"])
@pytest.mark.parametrize("answers", SAME)
def test_hand_written(answers: str, result: str) -> None:
    """Each file has pairs of gold answer and response, below what makes them right or wrong."""
    file = Path(__file__).parent / "answers" / f"{answers}_{result}.yaml"
    reasons = yaml.load(file.read_text(encoding="utf-8"), yaml.BaseLoader)
    pairs = [pair for of_reason in reasons.values() for pair in of_reason]
    both = (answers, result) != ("expression", "right")  # sentences, some of which have no tag
    misjudged = [
        (gold, response)
        for gold, response in pairs
        for each in ([response, tagged(response)] if both else [response])
        if right(each, gold, answers) != (result == "right")
    ]
    assert len(pairs) > 200
    assert misjudged == []


def test_random_pairs() -> None:
    pairs = cases(20 * len(KINDS), seed=1)
    wrong = [pair for pair in pairs if same_expression(f"\\boxed{{{pair[2]}}}", pair[1]) != pair[3]]
    assert wrong == []


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


# 3. Hostile responses

LONG = 100_000
HOSTILE = [
    "7" * LONG,
    "1,000" * LONG,
    "18" + " " * LONG + "20",
    "-" * LONG + "18",
    "{" * LONG + "18" + "}" * LONG,
    "\\text{" * LONG + "18" + "}" * LONG,
    "\\boxed{" * LONG + "}" * LONG,
    "(" * LONG + "18" + ")" * LONG,
    "<answer>" * LONG,
    "=" * LONG + "20 = 18",
    "\ud800" * LONG,
    "1" + "\u200b" * LONG + "8",
]


@pytest.mark.parametrize("answers", SAME)
def test_long_responses_are_wrong(answers: str) -> None:
    for text in HOSTILE:
        assert not right(text, "18", answers), text[:9]
        assert not right(tagged(text), "18", answers), text[:9]


def test_no_arithmetic_is_done_for_a_number() -> None:
    for text in ("9^9^9^9^9", "$9^{9^{9^{9^{9}}}}$", "100000000!", "\\boxed{99999!!!!}"):
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


@pytest.mark.parametrize(("name", "answers"), [("gsm8k", "number"), ("math", "expression")])
def test_each_data_set_has_its_choice(name: str, answers: str) -> None:
    task = experiment(f"dataset={name}").dataset
    assert task.answers == answers
    assert task.verify("\\boxed{18}", "18").accuracy == 1
    assert task.verify("\\boxed{36/2}", "18").accuracy == (answers == "expression")
