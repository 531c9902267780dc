"""MyTask: prompt `4731=`, response `1347`."""

from dataclasses import dataclass

import numpy as np

from rec_experiments.types import Piece, Problem, VerifierResult


@dataclass(kw_only=True)
class MyTask(Piece):
    """Digits to be sorted. Raises ValueError unless there are enough different prompts.

    Its fields are its configuration; their values stand in conf/dataset/my_task.yaml.
    """

    digits: int
    train_problems: int
    eval_problems: int
    max_prompt_tokens: int
    max_response_tokens: int
    verifier_workers: int
    verifier_timeout: float

    def __post_init__(self) -> None:
        if self.train_problems + self.eval_problems > 10**self.digits:
            raise ValueError(f"digits={self.digits}: makes fewer prompts than are asked for")

    def load(self) -> tuple[list[Problem], list[Problem]]:
        """Training and evaluation problems, the same ones in every run; none is in both."""
        prompts = np.random.default_rng(0).permutation(10**self.digits)
        problems = [self.problem(f"{number:0{self.digits}d}") for number in prompts]
        return problems[: self.train_problems], problems[-self.eval_problems :]

    def problem(self, digits: str) -> Problem:
        """What the model sees, what its answer is checked against, and a right response."""
        solution = "".join(sorted(digits))
        return Problem(({"role": "user", "content": f"{digits}="},), solution, solution)

    def verify(self, response: str, answer: str) -> VerifierResult:
        """reward is what is learned from, accuracy is 1 for a right answer; they may differ."""
        correct = float(response == answer)
        return VerifierResult(reward=correct, accuracy=correct)

    def describe(self) -> str:
        return f"{self.digits} digits to sort"

    def demonstrations(
        self, problems: list[Problem], count: int, seed: int
    ) -> list[tuple[int, list[str]]]:
        """What a tiny model, which starts from nothing, is shown before its run: the number of a
        problem and the model's turns, here one. Half of the solutions have two digits swapped, so
        that there is something left to learn."""
        generator = np.random.default_rng(seed)
        shown = []
        for i in generator.integers(len(problems), size=count):
            written = list(problems[i].solution)
            if generator.random() < 0.5:
                a, b = generator.choice(self.digits, size=2, replace=False)
                written[a], written[b] = written[b], written[a]
            shown.append((int(i), ["".join(written)]))
        return shown


SCHEMAS = {"dataset": {"my_task": MyTask}}  # slot to name to class
