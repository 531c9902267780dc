"""Chain arithmetic modulo 8 with a calculator: several turns per response.

Prompt `3+4*7=`, evaluated from left to right. The model asks `?3+4`, the environment replies `7`;
the model asks `?7*7`, the environment replies `1`; the model answers `#1`. Only the answer is
scored.
"""

import re
from dataclasses import replace

from rec_experiments.common.problems import Problem
from rec_experiments.datasets.arithmetic import OPERATORS, Arithmetic, Author, operations

QUERY = re.compile(r"\?([0-9])([+*])([0-9])")


class Calculator(Arithmetic):
    """Raises ValueError for a number out of range.

    A mistake of the warm-start author is a wrong right operand. max_turns: must leave room for one
    query per step and the answer.
    """

    max_turns: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_turns <= self.max_steps:
            raise ValueError(
                f"max_turns={self.max_turns}: must be greater than max_steps={self.max_steps}, to "
                "answer at last"
            )

    def problem(self, prompt: str) -> Problem:
        """The problem of a prompt. The verifier needs the answer alone."""
        problem = super().problem(prompt)
        answer = problem.answer.rpartition(";")[2]
        return replace(problem, answer=answer, solution=answer)

    def reply(self, problem: Problem, turns: list[str]) -> str | None:
        """The result of a query; any other turn ends the trajectory."""
        query = QUERY.fullmatch(turns[-1])
        if query is None:
            return None
        a, operator, b = query.groups()
        return str(OPERATORS[operator](int(a), int(b)) % self.modulus)

    def outcome(self, turns: list[str]) -> str:
        return turns[-1]

    def describe(self) -> str:
        return (
            f"chain arithmetic modulo {self.modulus}, {self.min_steps} to {self.max_steps} steps, "
            f"with a calculator, at most {self.max_turns} turns, the answer judged"
        )

    def written(self, prompt: str, author: Author) -> list[str]:
        """One query per step, some with a wrong operand, and the answer that follows."""
        value, turns = int(prompt[0]), []
        for operator, right in operations(prompt):
            b = author.slip(right, (value, operator, right))
            turns.append(f"?{value}{operator}{b}")
            value = OPERATORS[operator](value, b) % self.modulus
        return [*turns, f"#{value}"]
