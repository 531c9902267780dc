"""Your own rows, from a folder or the Hugging Face hub, judged by your own function."""

import importlib
import inspect
import math
from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import NonNegativeInt

from rec_experiments.common import live
from rec_experiments.common.errors import UserError, first_line
from rec_experiments.common.problems import Problem, VerifierResult
from rec_experiments.datasets.loading import Located, text_of
from rec_experiments.datasets.text import ProblemSource, Solved, SplitDataset, prompt


class TextSource(ProblemSource):
    """A split and the fields of its rows.

    question, answer, solution: fields; `prompt.0.content` is a nested one. The verifier gets an
    answer that is no text as JSON. solution: a response that the verifier must accept; null if the
    answer itself is one.
    """

    question: str
    answer: str
    solution: str | None

    def problem(self, located: Located, system_prompt: str) -> Problem:
        where, row = located
        answer = text_of(row, self.answer, where, as_json=True)
        return Problem(
            messages=prompt(system_prompt, text_of(row, self.question, where)),
            answer=answer,
            solution=text_of(row, self.solution, where) if self.solution else answer,
        )


class OwnData(Solved, SplitDataset):
    """verifier: dotted name of a function (response, answer) of two texts, or one of this process.
    It returns a VerifierResult, or a reward; a reward of 1 or more counts as correct.
    verifier_workers: 0 judges in the run's own process, without a deadline."""

    train: TextSource
    evaluation: TextSource
    verifier: str
    verifier_workers: NonNegativeInt
    imported: ClassVar[tuple[str, ...]] = ("verifier",)

    def load(self) -> tuple[list[Problem], list[Problem]]:
        function(self.verifier)  # fails here rather than in the first batch
        return SplitDataset.load(self)

    def verify(self, response: str, answer: str) -> VerifierResult:
        return result(function(self.verifier)(response, answer))

    def slow_imports(self) -> list[str]:
        return [self.verifier.rpartition(".")[0]]

    def describe(self) -> str:
        hubs = dict.fromkeys([self.train.hub, self.evaluation.hub])
        return f"{self.path or ' and '.join(map(str, hubs))}, judged by {self.verifier}"


def function(name: str) -> Callable[[str, str], Any]:
    """The function of a dotted name, or one of this process. Raises UserError unless it takes two
    arguments."""
    module, _, attribute = name.rpartition(".")
    key = f"dataset.verifier={name}"
    try:
        if live.is_live(name):
            found = live.find(name, "dataset.verifier")
        else:
            found = getattr(importlib.import_module(module), attribute)
        inspect.signature(found).bind("response", "answer")
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        raise UserError(
            f"{key}: must be the dotted name of a function (response, answer), as in "
            f"my_module.judge ({first_line(error)})"
        ) from error
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # of the user's module
        raise UserError(
            f"{key}: {module} cannot be imported ({type(error).__name__}: {first_line(error)})"
        ) from error
    return found


def result(returned: Any) -> VerifierResult:
    """The value that a verifier returned, as a VerifierResult. Raises TypeError for any other."""
    if isinstance(returned, VerifierResult):
        return returned
    reward = float(returned) if not isinstance(returned, str) else math.nan
    if not math.isfinite(reward):
        raise TypeError(
            f"a verifier returned {returned!r}: must be a finite number or a VerifierResult"
        )
    return VerifierResult(reward=reward, accuracy=float(reward >= 1))
