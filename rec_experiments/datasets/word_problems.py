"""Word problems made by a program: a story of several steps whose answer is a whole number.

Prompt `Nora has 12 apples. Then she buys 9 more. After that she gives 5 of them to Omar. How many
apples does Nora have now?`; response `12 + 9 = 21. 21 - 5 = 16. The answer is 16.` The last number
of a response counts, however it was derived.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, PositiveInt

from rec_experiments.common import rng
from rec_experiments.common.pieces import Piece
from rec_experiments.common.problems import Problem, VerifierResult
from rec_experiments.datasets.text import Solved, split

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

NUMBER = re.compile(r"-?\d+")
MOST_PROBLEMS = 100_000  # there are millions of stories even of one step
PEOPLE = (
    ("Nora", "she"), ("Omar", "he"), ("Lena", "she"), ("Tariq", "he"), ("Mia", "she"),
    ("Jonas", "he"), ("Aiko", "she"), ("Pedro", "he"), ("Ruth", "she"), ("Sven", "he"),
    ("Zoe", "she"), ("Ivan", "he"),
)  # fmt: skip
THINGS = (
    "apples", "stamps", "marbles", "books", "shells", "pencils", "coins", "cards", "stones",
    "flowers", "eggs", "buttons", "tickets", "candles", "nuts", "photos",
)  # fmt: skip
OPENINGS = (
    "{name} has {n} {things}.",
    "There are {n} {things} on the table of {name}.",
    "{name} starts the day with {n} {things}.",
    "In the morning {name} counts {n} {things}.",
    "{name} owns {n} {things}.",
)
LINKS = ("Then", "After that", "Later", "The next day", "In the afternoon", "Soon after")
ADDED = (
    "{she} buys {n} more", "{she} finds {n} more", "{other} brings {n} more",
    "{she} is given {n} more", "{she} wins {n} more", "{n} more arrive by post",
)  # fmt: skip
TAKEN = (
    "{she} gives {n} of them to {other}", "{she} loses {n} of them", "{she} sells {n} of them",
    "{other} borrows {n} of them", "{n} of them break", "{she} leaves {n} of them at school",
)  # fmt: skip
MULTIPLIED = (
    "{she} collects until there are {n} times as many",
    "the number of {things} grows to {n} times what it was",
)
QUESTIONS = (
    "How many {things} does {name} have now?",
    "How many {things} are left in the end?",
    "What is the number of {things} at the end?",
    "How many {things} are there now?",
)
FACTORS = (2, 3, 4)


class WordProblems(Solved, Piece):
    """Raises ValueError for a number out of range.

    min_steps, max_steps: changes in a story. largest: no number in a story or its solution is
    larger. train_problems, eval_problems: number of problems to make; their stories differ.
    """

    min_steps: PositiveInt
    max_steps: Annotated[int, Field(ge=1, le=len(LINKS))]
    largest: Annotated[int, Field(ge=10)]
    train_problems: Annotated[int, Field(ge=1, le=MOST_PROBLEMS)]
    eval_problems: Annotated[int, Field(ge=1, le=MOST_PROBLEMS)]
    max_prompt_tokens: PositiveInt
    max_response_tokens: PositiveInt
    verifier_workers: int
    verifier_timeout: float

    def __post_init__(self) -> None:
        if self.min_steps > self.max_steps:
            raise ValueError(f"min_steps={self.min_steps}: must be at most {self.max_steps}")

    def load(self) -> tuple[list[Problem], list[Problem]]:
        """Problems with distinct stories; a hash of the story decides its split."""
        return split(self.stories(), (self.train_problems, self.eval_problems))

    def stories(self) -> Iterator[tuple[str, Problem]]:
        """Random problems with their stories, all different, without end."""
        generator, told = rng.generator(0, rng.TASK, 0), set()
        while True:
            problem = self.problem(generator)
            story = problem.messages[0]["content"]
            if story not in told:
                told.add(story)
                yield story, problem

    def problem(self, generator: np.random.Generator) -> Problem:
        """A random story with its solution."""

        def pick(choices: tuple[str, ...]) -> str:
            return choices[int(generator.integers(len(choices)))]

        first, second = generator.choice(len(PEOPLE), size=2, replace=False)
        (name, she), (other, _) = PEOPLE[first], PEOPLE[second]
        words = {"name": name, "she": she, "other": other, "things": pick(THINGS)}
        value = int(generator.integers(2, self.largest // 2 + 1))
        story, derivation = [pick(OPENINGS).format(n=value, **words)], []
        links = generator.permutation(len(LINKS))
        for link in links[: generator.integers(self.min_steps, self.max_steps + 1)]:
            sentences, sign, n, new = self.step(value, generator)
            story.append(f"{LINKS[link]} {pick(sentences).format(n=n, **words)}.")
            derivation.append(f"{value} {sign} {n} = {new}.")
            value = new
        story.append(pick(QUESTIONS).format(**words))
        return Problem(
            messages=({"role": "user", "content": " ".join(story)},),
            answer=str(value),
            solution=" ".join([*derivation, f"The answer is {value}."]),
        )

    def step(
        self, value: int, generator: np.random.Generator
    ) -> tuple[tuple[str, ...], str, int, int]:
        """A random change that keeps the number between 1 and `largest`: its sentences, its sign,
        its number, and the new value."""
        factors = [factor for factor in FACTORS if factor * value <= self.largest]
        kinds = ["+"] * (value + 2 <= self.largest) + ["-"] * (value > 2) + ["*"] * bool(factors)
        kind = kinds[int(generator.integers(len(kinds)))]
        if kind == "*":
            factor = factors[int(generator.integers(len(factors)))]
            return MULTIPLIED, kind, factor, factor * value
        if kind == "+":
            n = int(generator.integers(2, self.largest - value + 1))
            return ADDED, kind, n, value + n
        n = int(generator.integers(2, value))
        return TAKEN, kind, n, value - n

    def verify(self, response: str, answer: str) -> VerifierResult:
        numbers = NUMBER.findall(response)
        correct = float(bool(numbers) and numbers[-1] == answer)
        return VerifierResult(reward=correct, accuracy=correct)

    def describe(self) -> str:
        return (
            f"word problems of {self.min_steps} to {self.max_steps} steps with numbers up to "
            f"{self.largest}, the last number judged"
        )
