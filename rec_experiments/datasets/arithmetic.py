"""Chain arithmetic modulo 8, generated on the fly. The response must contain the whole derivation.

Prompt `3+4*7=`, evaluated from left to right; response `3+4=7;7*7=1;#1`. Only an exact derivation
earns reward, so guessing earns nothing and a collapsed policy stays collapsed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, PositiveInt

from rec_experiments.common import rng
from rec_experiments.common.errors import UserError
from rec_experiments.common.pieces import Piece, Share
from rec_experiments.common.problems import Problem, VerifierResult
from rec_experiments.datasets.text import EVALUATION_SHARE, split

if TYPE_CHECKING:
    import numpy as np

OPERATORS = {"+": lambda a, b: a + b, "*": lambda a, b: a * b}


class Arithmetic(Piece):
    """Raises ValueError for a number out of range.

    modulus: values are 0 .. modulus − 1. min_steps, max_steps: operations in a chain.
    train_problems, eval_problems: number of problems to generate. hard_share: share of the facts
    (a, operator, b) that the author of the warm-start corpus gets wrong with probability
    hard_error; the other facts have probability easy_error.
    """

    modulus: Annotated[int, Field(ge=2, le=10)]
    min_steps: PositiveInt
    max_steps: int
    train_problems: PositiveInt
    eval_problems: PositiveInt
    hard_share: Share
    hard_error: Share
    easy_error: Share
    max_prompt_tokens: PositiveInt
    max_response_tokens: PositiveInt
    verifier_workers: int
    verifier_timeout: float

    def __post_init__(self) -> None:
        if self.min_steps > self.max_steps:
            raise ValueError(f"min_steps={self.min_steps}: must be at most {self.max_steps}")

    def load(self) -> tuple[list[Problem], list[Problem]]:
        prompts = self.prompts(rng.generator(0, rng.TASK, 0))
        train, held_out = split(
            ((self.content(prompt), prompt) for prompt in prompts),
            (self.train_problems, self.eval_problems),
        )
        for name, found in (("train_problems", train), ("eval_problems", held_out)):
            if len(found) < getattr(self, name):
                raise UserError(
                    f"dataset.{name}={getattr(self, name)}: only {len(found)} different "
                    f"prompts exist with modulus {self.modulus} and up to {self.max_steps} steps"
                )
        return [self.problem(each) for each in train], [self.problem(each) for each in held_out]

    def prompts(self, generator: np.random.Generator) -> dict[str, None]:
        """Distinct random chains in a fixed order."""
        wanted = self.prompts_to_draw()
        lengths = generator.integers(self.min_steps, self.max_steps + 1, size=wanted)
        digits = generator.integers(self.modulus, size=(wanted, self.max_steps + 1))
        operators = generator.integers(len(OPERATORS), size=(wanted, self.max_steps))
        names = list(OPERATORS)
        chains: dict[str, None] = {}
        for length, row, ops in zip(lengths, digits, operators, strict=True):
            tail = "".join(f"{names[ops[i]]}{row[i + 1]}" for i in range(length))
            chains[f"{row[0]}{tail}="] = None
        return chains

    def prompts_to_draw(self) -> int:
        """Enough for both splits, unless there are too few distinct prompts."""
        needed = max(self.train_problems // EVALUATION_SHARE, self.eval_problems)
        return 8 * EVALUATION_SHARE * needed

    def content(self, prompt: str) -> str:
        """The part of a prompt that decides its split: here the whole prompt."""
        return prompt

    def problem(self, prompt: str) -> Problem:
        """The problem of a prompt. The verifier needs the one correct derivation."""
        derivation = derive(prompt, self.modulus)
        return Problem(({"role": "user", "content": prompt},), derivation, derivation)

    def verify(self, response: str, answer: str) -> VerifierResult:
        correct = float(response == answer)
        return VerifierResult(reward=correct, accuracy=correct)

    def describe(self) -> str:
        return (
            f"chain arithmetic modulo {self.modulus}, {self.min_steps} to {self.max_steps} steps, "
            "the whole derivation judged"
        )

    def demonstrations(
        self, problems: list[Problem], count: int, seed: int
    ) -> list[tuple[int, list[str]]]:
        """`count` problem numbers with the model's turns, written by a fallible author.

        The author always makes the same mistake at a hard fact. The warm start teaches the model
        these mistakes, and reinforcement learning has something to repair.
        """
        author = Author(self, rng.generator(seed, rng.TASK, 1))
        draws = rng.generator(seed, rng.TASK, 2)
        picks = draws.integers(len(problems), size=count)
        return [(int(i), self.written(problems[i].messages[0]["content"], author)) for i in picks]

    def written(self, prompt: str, author: Author) -> list[str]:
        """The model's turns as the author writes them: here one turn, the derivation."""
        return [derive(prompt, self.modulus, author.result)]


class Author:
    """Writes the warm-start corpus, with the error rates of the data set."""

    def __init__(self, dataset: Arithmetic, generator: np.random.Generator):
        values = range(dataset.modulus)
        facts = [(a, op, b) for a in values for op in OPERATORS for b in values]
        hard = generator.permutation(len(facts))[: round(dataset.hard_share * len(facts))]
        self.error = dict.fromkeys(facts, dataset.easy_error)
        self.error.update({facts[i]: dataset.hard_error for i in hard})
        shifts = generator.integers(1, dataset.modulus, size=len(facts))
        self.shift = dict(zip(facts, (int(s) for s in shifts), strict=True))
        self.generator, self.modulus = generator, dataset.modulus

    def result(self, a: int, operator: str, b: int) -> int:
        """The result that the author writes for a fact."""
        return self.slip(OPERATORS[operator](a, b) % self.modulus, (a, operator, b))

    def slip(self, value: int, fact: tuple[int, str, int]) -> int:
        """`value`, or the wrong one if the author makes the mistake of the fact."""
        if self.generator.random() < self.error[fact]:
            return (value + self.shift[fact]) % self.modulus
        return value


def derive(prompt: str, modulus: int, result: Callable[[int, str, int], int] | None = None) -> str:
    """The derivation of a chain such as `3+4*7=`. result(a, op, b): defaults to the correct one."""
    value = int(prompt[0])
    steps = []
    for operator, b in operations(prompt):
        new = result(value, operator, b) if result else OPERATORS[operator](value, b) % modulus
        steps.append(f"{value}{operator}{b}={new}")
        value = new
    return ";".join([*steps, f"#{value}"])


def operations(prompt: str) -> list[tuple[str, int]]:
    """Operator and right operand of each step of a chain such as `3+4*7=`."""
    return [(op, int(digit)) for op, digit in zip(prompt[1:-1:2], prompt[2:-1:2], strict=True)]
