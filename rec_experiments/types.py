"""The vocabulary: what a sample is on its way from prompt to gradient step.

Shape suffixes, used in every file: B sequences of a (micro-)batch, T response tokens, P prompt
tokens, V vocabulary entries. A group is the K responses to one prompt.
"""

from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": ...}


@dataclass(kw_only=True, slots=True)
class Piece:
    """Base of every class that a config group can choose.

    kind: the name under which schema.py registers the class, so that a resolved configuration
    tells which class fills a slot. It is set there, nowhere else.
    """

    kind: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """One item of a data set: what the model sees and what its answer is checked against."""

    messages: tuple[Message, ...]
    answer: str
    solution: str = ""  # a gold response that the verifier must accept


@dataclass(frozen=True, slots=True)
class Response:
    """One sampled response: a turn of the policy, or turns of policy and environment in a row.

    tokens: response token ids, an end token included when it was sampled.
    logp: log-probability of each token under the policy that drew it, at the sampling temperature;
    0 for a token of the environment, where it is never read.
    finished: the policy ended its last turn; otherwise the response was cut at the length limit.
    mask: True where the policy wrote the token, False where the environment did.
    """

    tokens: list[int]
    logp: list[float]
    finished: bool
    mask: list[bool]

    @property
    def length(self) -> int:
        """Tokens that the policy wrote."""
        return sum(self.mask)

    @property
    def turns(self) -> int:
        """Turns of the policy, with a turn of the environment between any two."""
        return sum(written for written, _ in groupby(self.mask))

    def then(self, after: "Response", limit: int) -> "Response":
        """This with `after` behind it, as one response, cut at `limit` tokens."""
        tokens = self.tokens + after.tokens
        return Response(
            tokens[:limit],
            (self.logp + after.logp)[:limit],
            after.finished and len(tokens) <= limit,
            (self.mask + after.mask)[:limit],
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier said of one response, and why it scores 0 if it could not be judged.

    reward: what the algorithm learns from. accuracy: 1 if the answer is right, else 0; the two
    differ where a data set pays for more than the answer.
    """

    reward: float
    accuracy: float
    timed_out: bool = False
    crashed: bool = False


@dataclass(frozen=True, slots=True)
class Rollouts:
    """A batch of B = prompts x K responses, all from one policy version; group g holds K rows.

    index: the batch's number; it is consumed by gradient step `index`.
    version: gradient steps that the policy which drew it had taken.
    recomputed: log-probability of each response token under that policy, by the trainer's forward
    pass; None where nobody asked for it.
    """

    index: int
    version: int
    prompts: list[list[int]]  # B lists of prompt token ids
    responses: list[Response]  # B
    verdicts: list[Verdict]  # B
    groups: list[int]  # B group ids
    # spent on rollout and on reward where it was drawn, and on the wait for it where it is used
    seconds: dict[str, float] = field(default_factory=dict)
    recomputed: list[list[float]] | None = None

    @property
    def staleness(self) -> int:
        """Gradient steps between the policy that drew the batch and the one that consumes it."""
        return self.index - self.version


@dataclass(frozen=True, slots=True)
class Advantages:
    """What one mini-batch owes to each sequence, before any gradient: advantage and live tokens.

    advantage_B: the factor on each sequence's log-probability gradient.
    mask_BT: response tokens that count. A dropped sequence has none, so it leaves the denominator.
    totals: live tokens and sequences of the whole mini-batch, over all micro-batches and ranks.
    """

    advantage_B: Tensor
    mask_BT: Tensor
    totals: "Totals"

    def rows(self, index_B: Tensor, width: int) -> "Advantages":
        """Some rows, cut to `width` tokens; the totals stay those of the whole mini-batch."""
        return Advantages(self.advantage_B[index_B], self.mask_BT[index_B, :width], self.totals)


@dataclass(frozen=True, slots=True)
class Totals:
    """Denominators of a mini-batch, counted before it is cut into micro-batches."""

    tokens: int
    sequences: int


@dataclass(frozen=True, slots=True)
class LossInput:
    """What a loss may read. All tensors are B x T; positions outside `mask_BT` may hold anything.

    logp_BT: current policy, differentiable.
    behavior_logp_BT: the policy that drew the tokens.
    mismatch_weight_BT: what corrects for a sampler that differs from the trainer; None: nothing.
    """

    logp_BT: Tensor
    behavior_logp_BT: Tensor
    credit: Advantages
    mismatch_weight_BT: Tensor | None = None

    @property
    def log_ratio_BT(self) -> Tensor:
        """log ρ of each live token, detached; 0 elsewhere, so that garbage there cannot spread."""
        difference_BT = (self.logp_BT - self.behavior_logp_BT).detach()
        return torch.where(self.credit.mask_BT, difference_BT, 0.0)


@dataclass(frozen=True, slots=True)
class LossOutput:
    """loss: a scalar to differentiate. keep_BT: live tokens that the clip let through."""

    loss: Tensor
    log_ratio_BT: Tensor
    keep_BT: Tensor


@dataclass(frozen=True, slots=True)
class SampleKey:
    """Names the randomness of one response, so that it comes out the same in any batching."""

    seed: int
    stream: int  # TRAIN or EVAL of rec_experiments.rng
    batch: int
    group: int
    response: int
    turn: int = 0  # of the policy, within its response


class Sampler(Protocol):
    """Draws responses from a policy. The caller says which weights; the sampler never guesses."""

    def load(self, weights: dict[str, Tensor]) -> None:
        """Sample from these weights from now on."""

    def sample(
        self, prompts: list[list[int]], draws: list[list[SampleKey]], temperature: float
    ) -> list[list[Response]]:
        """One response per draw, prompt by prompt, in order. Temperature 0 is greedy."""


class SamplerConfig(Protocol):
    """What the group `sampler` chooses. The temperatures are those of training and evaluation."""

    temperature: float
    eval_temperature: float

    def build(
        self,
        model: Any,
        eos_ids: list[int],
        pad_id: int | None,
        max_prompt_tokens: int,
        max_response_tokens: int,
    ) -> Sampler:
        """The sampler of a run. `model` is being trained: a sampler that keeps it copies it."""


class OptimizerConfig(Protocol):
    """What the group `optimizer` chooses."""

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of the model's parameters."""

    def rate(self, step: int) -> float:
        """Learning rate of gradient step number `step`, counted from 0."""

    def step(self, optimizer: torch.optim.Optimizer, model: nn.Module, step: int) -> float:
        """Take gradient step number `step` and clear the gradient. Returns its norm."""

    def describe(self) -> str:
        """The optimizer in words."""


class Task(Protocol):
    """A data set with its verifier. Its dataclass is also the schema of its config.

    max_prompt_tokens, max_response_tokens: longer prompts are refused, longer responses cut.
    verifier_workers: killable processes that judge; 0 judges in the process of the run, which
    suits a verifier that cannot hang. verifier_timeout: seconds that one response may take there.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    max_prompt_tokens: int
    max_response_tokens: int
    verifier_workers: int
    verifier_timeout: float

    def load(self) -> tuple[list[Problem], list[Problem]]:
        """Training and evaluation problems. Raises UserError naming what is missing."""

    def verify(self, response: str, answer: str) -> Verdict:
        """Judge a response's text. Must be pure: it may run in another process."""

    def describe(self) -> str:
        """What the data is, for people."""


@runtime_checkable
class DemonstratedTask(Task, Protocol):
    """A data set that a model which starts from nothing can learn from before its run."""

    def demonstrations(
        self, problems: list[Problem], count: int, seed: int
    ) -> list[tuple[int, list[str]]]:
        """`count` of them: the number of a problem, and the model's turns on it."""


@runtime_checkable
class MultiTurnTask(Task, Protocol):
    """A data set whose environment answers the model: a response is a trajectory (Appendix A).

    A trajectory is model turn, environment turn, model turn, … and earns one verdict. It ends when
    the environment has no reply, after `max_turns` model turns, or at `max_response_tokens` tokens
    of both: there it is cut, also within the environment's words, and counts as unfinished. A model
    turn without an end token is cut, so that nobody replies to it.
    """

    max_turns: int

    def reply(self, problem: Problem, turns: list[str]) -> str | None:
        """The environment's reply to the model's turns so far; None ends the trajectory.

        Must be pure, and quick whatever the model wrote: it runs in the process of the run.
        """

    def outcome(self, turns: list[str]) -> str:
        """What `verify` judges of a trajectory with these model turns, such as the last of them."""
