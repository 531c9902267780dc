"""MyDataset: prompt `4731=`, response `1347`."""

import numpy as np

from rec_experiments.common.pieces import Piece
from rec_experiments.common.problems import Problem, VerifierResult


class MyDataset(Piece):
    """Digits to sort. Raises ValueError unless there are enough different prompts.

    The fields are the configuration; conf/dataset/my_dataset.yaml has the values.
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
        """Training and evaluation problems: the same in every run, and disjoint."""
        prompts = np.random.default_rng(0).permutation(10**self.digits)
        problems = [self.problem(f"{number:0{self.digits}d}") for number in prompts]
        return problems[: self.train_problems], problems[-self.eval_problems :]

    def problem(self, digits: str) -> Problem:
        """What the model sees, what its answer is checked against, and a correct response."""
        solution = "".join(sorted(digits))
        return Problem(({"role": "user", "content": f"{digits}="},), solution, solution)

    def verify(self, response: str, answer: str) -> VerifierResult:
        """The algorithm learns from `reward`; `accuracy` is 1 for a correct answer."""
        correct = float(response == answer)
        return VerifierResult(reward=correct, accuracy=correct)

    def describe(self) -> str:
        return f"{self.digits} digits to sort"

    def demonstrations(
        self, problems: list[Problem], count: int, seed: int
    ) -> list[tuple[int, list[str]]]:
        """Examples that warm-start a tiny model: the index of a problem, and the model's turns on
        it (here one). Half of the solutions have two digits swapped, so that the run has something
        to learn."""
        generator = np.random.default_rng(seed)
        shown = []
        for i in generator.integers(len(problems), size=count):
            written = list(problems[i].solution)
            if generator.random() < 0.5:
                a, b = generator.choice(self.digits, size=2, replace=False)
                written[a], written[b] = written[b], written[a]
            shown.append((int(i), ["".join(written)]))
        return shown
