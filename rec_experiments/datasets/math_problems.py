"""Mathematical problems with a known final answer: GSM8K, MATH, Guru, DeepScaleR, AIME, your own.

A YAML file in conf/dataset/ names the sources of the rows and the meaning of their fields.
`python -m rec_experiments check --answers dataset=NAME` runs the verifier over every gold answer.
"""

import re
from typing import Literal

from pydantic import NonNegativeFloat

from rec_experiments.common.errors import UserError
from rec_experiments.common.problems import Problem, VerifierResult
from rec_experiments.datasets.loading import Located, Source, text_of
from rec_experiments.datasets.text import ProblemSource, SplitDataset, prompt
from rec_experiments.datasets.verifiers.marks import last_boxed, verify
from rec_experiments.datasets.verifiers.numbers import same_number

# How a field contains the gold answer: alone, within the last \boxed{} of a text, or as a number
# after the last ####.
Form = Literal["plain", "boxed", "hashed"]


class MathSource(ProblemSource):
    """A split and the fields of its rows.

    question, answer, solution: fields; `prompt.0.content` is a nested one, and solution may be
    null. form: how `answer` contains the gold answer. filter: a regular expression by field; a row
    is kept if each of them matches somewhere in its field.
    """

    question: str
    answer: str
    form: Form
    solution: str | None
    filter: dict[str, str]

    def check(self, name: str, path: str | None) -> None:
        """Raise ValueError also for a filter that is no regular expression."""
        Source.check(self, name, path)
        for key, pattern in self.filter.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"{name}.filter.{key}={pattern}: must be a regular expression ({error})"
                ) from None

    def read(self, name: str, path: str | None) -> list[Located]:
        """The rows that pass the filter. Raises UserError also if there are none."""
        rows = Source.read(self, name, path)
        kept = [
            (where, row)
            for where, row in rows
            if all(re.search(p, text_of(row, f, where)) for f, p in self.filter.items())
        ]
        if not kept:
            raise UserError(f"dataset.{name}.filter={self.filter}: keeps none of {len(rows)} rows")
        return kept

    def problem(self, located: Located, system_prompt: str) -> Problem:
        """Raises UserError also for a row without a gold answer."""
        where, row = located
        answer = gold_answer(text_of(row, self.answer, where), self.form)
        if answer is None:
            raise UserError(
                f"{where}: field {self.answer!r} must {EXPECTED[self.form]}, but it ends in "
                f"{text_of(row, self.answer, where)[-40:]!r}"
            )
        reasoning = text_of(row, self.solution, where) if self.solution else ""
        if self.form == "hashed":
            reasoning = _CALCULATOR_NOTE.sub("", reasoning.rpartition("####")[0])
        return Problem(
            messages=prompt(system_prompt, text_of(row, self.question, where)),
            answer=answer,
            solution=f"<think>\n{reasoning.strip()}\n</think>\n<answer>\n{answer}\n</answer>",
        )


class MathProblems(SplitDataset):
    """Raises ValueError also for a wrong filter.

    answers: what counts as the gold answer: the `number` itself, or any `expression` of its value.
    format_bonus: see `verifiers.marks.verify`.
    """

    train: MathSource
    evaluation: MathSource
    answers: Literal["number", "expression"]
    format_bonus: NonNegativeFloat

    def verify(self, response: str, answer: str) -> VerifierResult:
        if self.answers == "number":
            return verify(response, answer, self.format_bonus, same_number)
        from rec_experiments.datasets.verifiers.expressions import same_expression  # slow: sympy

        return verify(response, answer, self.format_bonus, same_expression)

    def describe(self) -> str:
        return self.path or f"{self.train.hub}, evaluated on {self.evaluation.hub}"


EXPECTED = {
    "plain": "hold an answer",
    "boxed": "hold the answer in \\boxed{}",
    "hashed": "end in '#### NUMBER'",
}
_CALCULATOR_NOTE = re.compile(r"<<.*?>>")  # such as <<48/2=24>> in GSM8K


def gold_answer(text: str, form: Form) -> str | None:
    r"""The gold answer in a field, or None.

    plain: `$\frac12$` gives \frac12. boxed: `\boxed 3`, a spelling of MATH, gives 3. hashed:
    `#### 1,080` gives 1080.
    """
    if form == "hashed":
        number = re.sub(r"[,$\s]", "", text.rpartition("####")[2]) if "####" in text else ""
        return number if re.fullmatch(r"-?\d+(\.\d+)?", number) else None
    if form == "boxed":
        text = last_boxed(re.sub(r"\\boxed\s+([^\s$.,]+)", r"\\boxed{\1}", text)) or ""
    formula = re.fullmatch(r"\s*\$([^$]+)\$\s*", text)
    return (formula[1] if formula else text).strip() or None
