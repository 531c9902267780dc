"""What all tasks share whose responses are texts for a verifier in processes of its own."""

import math
from dataclasses import dataclass
from enum import StrEnum

from rec_experiments import rng
from rec_experiments.types import Message, Piece, Problem

MOST_WORKERS = 1024  # more processes than a machine has cores


class LongPrompts(StrEnum):
    """What becomes of prompts that are too long."""

    refuse = "refuse"  # the whole data set is refused, and the prompt shown
    drop = "drop"  # they are left out, and counted


@dataclass(kw_only=True)
class TextDataset(Piece):
    """Raises ValueError for a number out of range.

    system_prompt: opens every prompt. long_prompts: what becomes of a problem with a longer prompt
    than max_prompt_tokens. verifier_workers, verifier_timeout: processes that judge, and seconds
    that one response may take there.
    """

    system_prompt: str
    max_prompt_tokens: int
    long_prompts: LongPrompts
    max_response_tokens: int
    verifier_workers: int
    verifier_timeout: float

    def __post_init__(self) -> None:
        for name in ("max_prompt_tokens", "max_response_tokens", "verifier_workers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.verifier_workers > MOST_WORKERS:
            raise ValueError(
                f"verifier_workers={self.verifier_workers}: must be at most {MOST_WORKERS}"
            )
        if not 0 < self.verifier_timeout < math.inf:
            raise ValueError(
                f"verifier_timeout={self.verifier_timeout}: must be above 0 seconds, and finite"
            )


def prompt(system: str, user: str) -> tuple[Message, ...]:
    """The two messages that a response answers."""
    return {"role": "system", "content": system}, {"role": "user", "content": user}


def question(system: str, user: str) -> tuple[Message, ...]:
    """As `prompt`, without a system message if there are no words for it."""
    return prompt(system, user) if system else prompt(system, user)[1:]


def solutions(problems: list[Problem], count: int, seed: int) -> list[tuple[int, list[str]]]:
    """`count` demonstrations for a tiny model: numbers of problems, drawn at random, each with its
    gold response as the model's only turn."""
    picks = rng.generator(seed, rng.TASK, 2).integers(len(problems), size=count)
    return [(int(i), [problems[i].solution]) for i in picks]
