"""What a package outside of this one may add: a piece, a data set, a sampler, an optimizer."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from rec_experiments.samplers.native import Native
from rec_experiments.training.optimizers import AdamW
from rec_experiments.types import Piece, Problem, Sampler, VerifierResult


@dataclass(kw_only=True)
class TruncatedWeight(Piece):
    """min(ρ, cap)."""

    cap: float

    def __call__(self, log_ratio_BT: Tensor, *_: object) -> Tensor:
        return log_ratio_BT.exp().clamp(max=self.cap)

    def describe(self, ratio: str) -> str:
        return f" · min(ρ, {self.cap:g})"


@dataclass(kw_only=True)
class Parity(Piece):
    """Prompt `1011=`, response `1`: whether the number of ones is odd."""

    bits: int
    train_problems: int
    eval_problems: int
    max_prompt_tokens: int
    max_response_tokens: int
    verifier_workers: int
    verifier_timeout: float

    def load(self) -> tuple[list[Problem], list[Problem]]:
        prompts = [f"{number:0{self.bits}b}" for number in range(2**self.bits)]
        problems = [
            Problem(({"role": "user", "content": f"{bits}="},), str(bits.count("1") % 2))
            for bits in np.random.default_rng(0).permutation(prompts)
        ]
        return problems[: self.train_problems], problems[-self.eval_problems :]

    def verify(self, response: str, answer: str) -> VerifierResult:
        correct = float(response == answer)
        return VerifierResult(reward=correct, accuracy=correct)

    def describe(self) -> str:
        return f"parity of {self.bits} bits"

    def demonstrations(
        self, problems: list[Problem], count: int, seed: int
    ) -> list[tuple[int, list[str]]]:
        picks = np.random.default_rng(seed).integers(len(problems), size=count)
        return [(int(i), [problems[i].answer]) for i in picks]


@dataclass(kw_only=True)
class Short(Native):
    """The native sampler, which stops after `limit` tokens."""

    limit: int

    def build(self, *arguments: object) -> Sampler:
        *others, longest = arguments
        return Native.build(self, *others, min(self.limit, longest))


@dataclass(kw_only=True)
class Decaying(AdamW):
    """AdamW whose learning rate falls as 1/√step."""

    def rate(self, step: int) -> float:
        return AdamW.rate(self, step) / (step + 1) ** 0.5


SCHEMAS = {
    "weight": {"truncated": TruncatedWeight},
    "dataset": {"parity": Parity},
    "sampler": {"short": Short},
    "optimizer": {"decaying": Decaying},
}
