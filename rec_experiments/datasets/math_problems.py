"""Mathematical problems with a known final answer: GSM8K, MATH, Guru, DeepScaleR, AIME, your own.

A data set is a YAML file in conf/dataset/ that says where its rows are and what their fields mean.
`python -m rec_experiments check_data dataset=NAME` runs the verifier over every gold answer.
"""

import math
import re
from dataclasses import dataclass
from enum import Enum

from rec_experiments.datasets.loading import Named, Source, refuse_one_file_for_two, text_of
from rec_experiments.datasets.text import TextDataset, prompt
from rec_experiments.datasets.verifiers.marks import last_boxed
from rec_experiments.errors import UserError
from rec_experiments.types import Problem, VerifierResult


class Form(Enum):
    """How a field gives the gold answer."""

    plain = "plain"  # the answer alone
    boxed = "boxed"  # in the last \boxed{} of a text
    hashed = "hashed"  # a number after the last ####


class Answers(Enum):
    """What counts as the gold answer."""

    number = "number"  # that number itself
    expression = "expression"  # any expression of the same value


@dataclass(kw_only=True)
class MathSource(Source):
    """A split, and what the fields of its rows mean.

    question, answer, solution: fields, nested ones as in `prompt.0.content`; solution may be null.
    form: how `answer` gives the gold answer. filter: for each field a regular expression; a row
    stays if each is found in it.
    """

    question: str
    answer: str
    form: Form
    solution: str | None
    filter: dict[str, str]

    def problem(self, named: Named, system_prompt: str) -> Problem:
        """Raises UserError that names the row if a field is missing or gives no answer."""
        where, row = named
        answer = gold_answer(text_of(row, self.answer, where), self.form)
        if answer is None:
            raise UserError(
                f"{where}: field {self.answer!r} must {EXPECTED[self.form]}, but it ends in "
                f"{text_of(row, self.answer, where)[-40:]!r}"
            )
        reasoning = text_of(row, self.solution, where) if self.solution else ""
        if self.form is Form.hashed:
            reasoning = _CALCULATOR_NOTE.sub("", reasoning.rpartition("####")[0])
        return Problem(
            messages=prompt(system_prompt, text_of(row, self.question, where)),
            answer=answer,
            solution=f"<think>\n{reasoning.strip()}\n</think>\n<answer>\n{answer}\n</answer>",
        )


@dataclass(kw_only=True)
class MathProblems(TextDataset):
    """Raises ValueError for a number out of range, no hub name or no regular expression.

    path: a local folder with the files that `train` and `evaluation` name, or null for the hub.
    Where both name the same file, it may be that file itself. answers, format_bonus: see
    `rewards.math_answer`.
    """

    path: str | None
    train: MathSource
    evaluation: MathSource
    answers: Answers
    format_bonus: float

    def __post_init__(self) -> None:
        TextDataset.__post_init__(self)
        if not isinstance(self.answers, Answers):
            allowed = " or ".join(choice.value for choice in Answers)
            raise ValueError(f"answers={self.answers}: must be {allowed}")
        if not 0 <= self.format_bonus < math.inf:
            raise ValueError(f"format_bonus={self.format_bonus}: must be at least 0, and finite")
        for name, source in self._sources():
            source.check(name, self.path)
            for field, pattern in source.filter.items():
                try:
                    re.compile(pattern)
                except re.error as error:
                    raise ValueError(
                        f"{name}.filter.{field}={pattern}: must be a regular expression ({error})"
                    ) from None

    def load(self) -> tuple[list[Problem], list[Problem]]:
        """Training and evaluation problems, in the order of their files."""
        refuse_one_file_for_two(self.path, [self.train, self.evaluation])
        train, evaluation = (self._problems(name, source) for name, source in self._sources())
        return train, evaluation

    def verify(self, response: str, answer: str) -> VerifierResult:
        from rec_experiments.datasets.verifiers import math_answer  # sympy is slow to import

        number = self.answers is Answers.number
        same = math_answer.same_number if number else math_answer.same_expression
        return math_answer.verify(response, answer, self.format_bonus, same)

    def describe(self) -> str:
        return self.path or f"{self.train.hub}, evaluated on {self.evaluation.hub}"

    def _sources(self) -> list[tuple[str, MathSource]]:
        return [("train", self.train), ("evaluation", self.evaluation)]

    def _problems(self, name: str, source: MathSource) -> list[Problem]:
        rows = source.read(name, self.path)
        kept = [
            (where, row)
            for where, row in rows
            if all(re.search(p, text_of(row, f, where)) for f, p in source.filter.items())
        ]
        if not kept:
            raise UserError(
                f"dataset.{name}.filter={source.filter}: leaves none of {len(rows)} rows"
            )
        return [source.problem(named, self.system_prompt) for named in kept]


EXPECTED = {
    Form.plain: "hold an answer",
    Form.boxed: "hold the answer in \\boxed{}",
    Form.hashed: "end in '#### NUMBER'",
}
_CALCULATOR_NOTE = re.compile(r"<<.*?>>")  # GSM8K's <<48/2=24>>, no part of its text


def gold_answer(text: str, form: Form) -> str | None:
    r"""The gold answer that a field gives, or None if it gives none.

    plain: `$\frac12$` is \frac12. boxed: `\boxed 3` is 3, as MATH has it. hashed: `#### 1,080` is
    1080.
    """
    if form is Form.hashed:
        number = re.sub(r"[,$\s]", "", text.rpartition("####")[2]) if "####" in text else ""
        return number if re.fullmatch(r"-?\d+(\.\d+)?", number) else None
    if form is Form.boxed:
        text = last_boxed(re.sub(r"\\boxed\s+([^\s$.,]+)", r"\\boxed{\1}", text)) or ""
    formula = re.fullmatch(r"\s*\$([^$]+)\$\s*", text)
    return (formula[1] if formula else text).strip() or None
