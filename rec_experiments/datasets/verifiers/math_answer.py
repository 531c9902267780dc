r"""Rule-based reward for questions with a mathematical answer: a number or a LaTeX expression.

A response is judged on its final answer only, never on its reasoning. The same text as the gold
answer is right. Beyond that there are two meanings of right, and a data set chooses one:

`same_number`: the answer is one number as people write it, with sign, separators, currency, unit,
LaTeX or a phrase such as "x =" or "The answer is" around it. Arithmetic, a second number, negation
and doubt make it wrong.

`same_expression`: any expression of the same value, so \frac{36}{2} is 18 (expressions.py).

Units are not checked: "18", "$18" and "18%" are all 18.
"""

import re
from collections.abc import Callable

from rec_experiments.common.problems import VerifierResult
from rec_experiments.datasets.verifiers.expressions import same_expression
from rec_experiments.datasets.verifiers.marks import final_answer
from rec_experiments.datasets.verifiers.numbers import readings
from rec_experiments.datasets.verifiers.spelling import bare

__all__ = ["final_answer", "same_expression", "same_number", "verify", "well_formed"]

LONGEST = 1000  # characters of a final answer; a longer text is none
_TAG = re.compile(r"</?(?:think|answer)>")
_FORMAT = ["<think>", "</think>", "<answer>", "</answer>"]


def same_number(text: str, answer: str) -> bool:
    """Whether a final answer is the gold number, and nothing but one number."""
    inside, gold = bare(text), bare(answer)
    return inside == gold or not readings(inside).isdisjoint(readings(gold))


def verify(
    response: str,
    answer: str,
    format_bonus: float,
    same: Callable[[str, str], bool] = same_expression,
) -> VerifierResult:
    """Judge a response against a gold answer: a number, or LaTeX without its dollars.

    accuracy: 1 if the final answer is the `same` as `answer`, else 0. reward: accuracy, plus
    `format_bonus` if the response is well-formed, minus it if not. With 0 the reward is binary, as
    in the text of arXiv 2509.24203; its runs used 0.1.
    """
    final = final_answer(response)
    accuracy = float(len(final) <= LONGEST and same(final, answer))
    bonus = format_bonus if well_formed(response) else -format_bonus
    return VerifierResult(reward=accuracy + bonus, accuracy=accuracy)


def well_formed(response: str) -> bool:
    """Whether it is one <think>...</think> and one <answer>...</answer>, with nothing around."""
    text = response.strip()
    return (
        _TAG.findall(text) == _FORMAT
        and text.startswith(_FORMAT[0])
        and text.endswith(_FORMAT[-1])
        and re.search(r"</think>\s*<answer>", text) is not None
    )
