"""Your own rows, from a folder or the Hugging Face hub, judged by a function of yours."""

import importlib
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rec_experiments.datasets.loading import Named, Source, refuse_one_file_for_two, text_of
from rec_experiments.datasets.text import TextDataset, question, solutions
from rec_experiments.errors import UserError, first_line
from rec_experiments.types import Problem, VerifierResult


@dataclass(kw_only=True)
class TextSource(Source):
    """A split, and what the fields of its rows mean.

    question, answer, solution: fields, nested ones as in `prompt.0.content`. An answer that is no
    text is given to the verifier as JSON. solution: a response that the verifier must accept; null
    where the answer itself is one.
    """

    question: str
    answer: str
    solution: str | None

    def problem(self, named: Named, system_prompt: str) -> Problem:
        """Raises UserError that names the row if a field is missing."""
        where, row = named
        answer = text_of(row, self.answer, where, as_json=True)
        return Problem(
            messages=question(system_prompt, text_of(row, self.question, where)),
            answer=answer,
            solution=text_of(row, self.solution, where) if self.solution else answer,
        )


@dataclass(kw_only=True)
class OwnData(TextDataset):
    """Raises ValueError for a number out of range or no hub name.

    path: a local folder with the files that `train` and `evaluation` name, or null for the hub.
    verifier: dotted name of a function of a response and the row's answer, both texts. It returns a
    number, the reward, where 1 and more counts as right; or a VerifierResult.
    """

    path: str | None
    train: TextSource
    evaluation: TextSource
    verifier: str

    def __post_init__(self) -> None:
        TextDataset.__post_init__(self)
        self.train.check("train", self.path)
        self.evaluation.check("evaluation", self.path)

    def load(self) -> tuple[list[Problem], list[Problem]]:
        """Training and evaluation problems, in the order of their files."""
        refuse_one_file_for_two(self.path, [self.train, self.evaluation])
        function(self.verifier)  # what cannot judge is told before anything is drawn
        train, evaluation = (
            [source.problem(named, self.system_prompt) for named in source.read(name, self.path)]
            for name, source in (("train", self.train), ("evaluation", self.evaluation))
        )
        return train, evaluation

    def verify(self, response: str, answer: str) -> VerifierResult:
        return result(function(self.verifier)(response, answer))

    def slow_imports(self) -> list[str]:
        return [self.verifier.rpartition(".")[0]]

    def describe(self) -> str:
        hubs = dict.fromkeys([self.train.hub, self.evaluation.hub])
        return f"{self.path or ' and '.join(map(str, hubs))}, judged by {self.verifier}"

    def demonstrations(
        self, problems: list[Problem], count: int, seed: int
    ) -> list[tuple[int, list[str]]]:
        return solutions(problems, count, seed)


def function(name: str) -> Callable[[str, str], Any]:
    """What a dotted name means. Raises UserError unless it is a function of two arguments."""
    module, _, attribute = name.rpartition(".")
    key = f"dataset.verifier={name}"
    try:
        found = getattr(importlib.import_module(module), attribute)
        inspect.signature(found).bind("response", "answer")
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        raise UserError(
            f"{key}: must be a function (response, answer) by its dotted name, as in "
            f"my_module.judge ({first_line(error)})"
        ) from error
    except Exception as error:  # whatever a module of the user's says
        raise UserError(
            f"{key}: {module} cannot be imported ({type(error).__name__}: {first_line(error)})"
        ) from error
    return found


def result(said: Any) -> VerifierResult:
    """What a verifier said, as a VerifierResult. Raises TypeError for anything else."""
    if isinstance(said, VerifierResult):
        return said
    reward = float(said) if not isinstance(said, str) else math.nan
    if not math.isfinite(reward):
        raise TypeError(f"a verifier said {said!r}: must be a finite number or a VerifierResult")
    return VerifierResult(reward=reward, accuracy=float(reward >= 1))
