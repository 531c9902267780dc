"""Reduction of a list of numbers modulo 8 to a single one, in any order.

Prompt `+3472=`; response `4+7=3;3+3=6;2+6=0;#0`. Each step takes two numbers off the list and puts
their result back, until one is left. Every correct derivation earns reward. There are many, so a
policy can learn to avoid the facts that it does not know.
"""

from __future__ import annotations

import re
from functools import reduce
from typing import TYPE_CHECKING, ClassVar

from rec_experiments.common.problems import Problem, VerifierResult
from rec_experiments.datasets.arithmetic import OPERATORS, Arithmetic, Author, derive

if TYPE_CHECKING:
    import numpy as np

STEP = re.compile(r"([0-9](?:([+*])[0-9])(?:\2[0-9])*)=([0-9])")


class Reduction(Arithmetic):
    """Raises ValueError for a number out of range.

    The author of the warm-start corpus combines a uniformly random ordered pair at each step.
    """

    most: ClassVar[int] = 2  # numbers that a step may combine

    def prompts(self, generator: np.random.Generator) -> dict[str, None]:
        """Distinct random lists with their operator, in a fixed order."""
        wanted = self.prompts_to_draw()
        lengths = generator.integers(self.min_steps, self.max_steps + 1, size=wanted) + 1
        digits = generator.integers(self.modulus, size=(wanted, self.max_steps + 1))
        operators = generator.choice(list(OPERATORS), size=wanted)
        return {
            f"{operator}{''.join(map(str, row[:length]))}=": None
            for length, row, operator in zip(lengths, digits, operators, strict=True)
        }

    def content(self, prompt: str) -> str:
        """Lists that differ only in their order belong to the same split."""
        return "".join(sorted(prompt))

    def problem(self, prompt: str) -> Problem:
        """The verifier needs the list. The solution reduces it from left to right; as the operators
        commute and associate, every derivation ends in the same number."""
        operator, digits = prompt[0], prompt[1:-1]
        solution = derive(f"{operator.join(digits)}=", self.modulus)
        return Problem(
            messages=({"role": "user", "content": prompt},),
            answer=prompt,
            solution=solution,
            shown_answer=solution.rpartition(";")[2],
        )

    def verify(self, response: str, answer: str) -> VerifierResult:
        """Score 1 for a correct derivation, else 0. answer: the prompt."""
        correct = float(is_reduction(response, *read(answer), self.modulus, self.most))
        return VerifierResult(reward=correct, accuracy=correct)

    def describe(self) -> str:
        return (
            f"reduction of {self.min_steps + 1} to {self.max_steps + 1} numbers modulo "
            f"{self.modulus} in any order, every correct derivation accepted"
        )

    def written(self, prompt: str, author: Author) -> list[str]:
        """The model's turns as the author writes them: here one turn, a derivation."""
        operator, numbers = read(prompt)
        steps = []
        while len(numbers) > 1:
            size = self.combined(len(numbers), author.generator)
            chosen = author.generator.choice(len(numbers), size=size, replace=False).tolist()
            taken = [numbers[i] for i in chosen]
            result = reduce(lambda a, b: author.result(a, operator, b), taken)
            steps.append(f"{operator.join(map(str, taken))}={result}")
            numbers = [n for k, n in enumerate(numbers) if k not in chosen] + [result]
        return [";".join([*steps, f"#{numbers[0]}"])]

    def combined(self, left: int, generator: np.random.Generator) -> int:
        """How many of `left` numbers the author combines in a step."""
        return 2


class Shortcuts(Reduction):
    """Reduction whose steps combine two or three numbers, so that the policy chooses the length of
    its response: `4+7+2=5` is shorter than two steps, and harder, as its intermediate result is not
    written. The author chooses two or three at random.
    """

    most: ClassVar[int] = 3

    def combined(self, left: int, generator: np.random.Generator) -> int:
        return min(left, int(generator.integers(2, self.most + 1)))

    def describe(self) -> str:
        return f"{super().describe()}, two or three numbers per step"


def read(prompt: str) -> tuple[str, list[int]]:
    """Operator and numbers of a prompt such as `+3472=`."""
    return prompt[0], [int(digit) for digit in prompt[1:-1]]


def is_reduction(
    response: str, operator: str, numbers: list[int], modulus: int, most: int = 2
) -> bool:
    """Whether each step combines two to `most` numbers of the list correctly, and the end names the
    last."""
    *steps, last = response.split(";")
    left = list(numbers)
    for step in steps:
        match = STEP.fullmatch(step)
        if match is None or match[2] != operator:
            return False
        taken, result = [int(digit) for digit in match[1][::2]], int(match[3])
        if len(taken) > most:
            return False
        for number in taken:
            if number not in left:
                return False
            left.remove(number)
        if result != reduce(OPERATORS[operator], taken) % modulus:
            return False
        left.append(result)
    return len(left) == 1 and last == f"#{left[0]}"
