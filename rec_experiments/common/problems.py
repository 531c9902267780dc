"""Problems, a verifier's results, and the interface of the data sets that give them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": ...}


@dataclass(frozen=True, slots=True)
class Problem:
    """One item of a data set.

    messages: the prompt. answer: passed to the verifier. solution: a gold response that the
    verifier must accept. shown_answer: the answer to display, if `answer` is not readable.
    """

    messages: tuple[Message, ...]
    answer: str
    solution: str = ""
    shown_answer: str = ""

    @property
    def expected(self) -> str:
        """The gold answer to display."""
        return self.shown_answer or self.answer


@dataclass(frozen=True, slots=True)
class VerifierResult:
    """A verifier's result for one response.

    reward: what the algorithm learns from. accuracy: 1 if the answer is right, else 0; it differs
    from the reward if a data set rewards more than the answer. A response whose verification timed
    out or crashed counts as wrong in accuracies, and training leaves it out.
    """

    reward: float
    accuracy: float
    timed_out: bool = False
    crashed: bool = False
    error: str = field(default="", compare=False)  # why it crashed


@runtime_checkable
class Dataset(Protocol):
    """Problems and their verifier.

    max_prompt_tokens, max_response_tokens: a run refuses longer prompts and cuts longer responses.
    verifier_workers: processes that verify responses and can be killed; with 0, the run's own
    process verifies, which suits a verifier that cannot hang. verifier_timeout: seconds that a
    worker may take for one response.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    max_prompt_tokens: int
    max_response_tokens: int
    verifier_workers: int
    verifier_timeout: float

    def load(self) -> tuple[list[Problem], list[Problem]]:
        """Training and evaluation problems. Raises UserError that names what is missing."""

    def verify(self, response: str, answer: str) -> VerifierResult:
        """Score a response. Must be a pure function: it may run in another process."""

    def describe(self) -> str:
        """A one-line description."""


@runtime_checkable
class SlowlyVerifiedDataset(Dataset, Protocol):
    """A data set whose verifier imports slow modules."""

    def slow_imports(self) -> list[str]:
        """Names of the modules. Workers import them before the first timeout starts."""


@runtime_checkable
class DemonstratedDataset(Dataset, Protocol):
    """A data set with demonstrations, from which a model can learn before RL."""

    def demonstrations(
        self, problems: list[Problem], count: int, seed: int
    ) -> list[tuple[int, list[str]]]:
        """`count` demonstrations: the number of a problem, and the model's turns."""


@runtime_checkable
class MultiTurnDataset(Dataset, Protocol):
    """A data set whose environment replies to the model: a response is a trajectory (Appendix A).

    A trajectory alternates between turns of the model and of the environment, and is scored as a
    whole. It ends when the environment does not reply, after `max_turns` turns of the model, or at
    `max_response_tokens` tokens of both. Such a cut may fall into a turn of the environment; the
    trajectory is then unfinished. The environment does not reply to a turn without an end token.
    """

    max_turns: int

    def reply(self, problem: Problem, turns: list[str]) -> str | None:
        """The environment's reply to the model's turns so far, or None to end the trajectory.

        Must be a pure function, and fast for any turns: it runs in the run's own process.
        """

    def outcome(self, turns: list[str]) -> str:
        """The text that `verify` scores, such as the last of the model's turns."""
