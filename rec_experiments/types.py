"""The types that all packages share: a sample on its way from prompt to gradient step.

The name of a tensor ends in its shape: one letter per dimension, 1 for a dimension of size 1.
Within a function each letter has one value; the tests check this at every call.

    B  sequences of a batch, a mini-batch or a micro-batch, one per response
    U  distinct sequences or distinct prefixes, computed once for all rows that share them
    M  distinct prefixes that continue, one token longer
    G  groups: the K responses to one prompt
    T  response tokens
    P  prompt tokens
    L  positions of the cache: prompt tokens, then response tokens
    N  tokens of all sequences, one after the other, without padding
    C  tokens of one chunk of these N
    V  vocabulary entries
    D  hidden size
    F  size of a feed-forward layer
    H  attention heads: queries, keys and values together
    J  key heads; there are as many value heads
    Q  query heads that share a key head
    Z  heads of all prefixes or rows, one after the other
    E  size of a head
    K  responses of one group
    S  seeds
    I  steps of a curve
    X  any size without a letter
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate, groupby
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    Protocol,
    dataclass_transform,
    runtime_checkable,
)

from pydantic import ConfigDict, Field, GetCoreSchemaHandler
from pydantic.dataclasses import dataclass as checked_dataclass
from pydantic_core import core_schema

if TYPE_CHECKING:
    import torch

    Tensor = torch.Tensor
else:  # torch takes seconds to import, and many commands do not need it
    Tensor = Any

Message = dict[str, str]  # {"role": "system" | "user" | "assistant", "content": ...}


# sampler: log-probabilities as the sampler reported them. behavior: the policy that drew the
# tokens. proximal: the center of the trust region. reference: the policy of a KL penalty.
ROLES = frozenset({"sampler", "behavior", "proximal", "reference"})
# Exact values at each token in nats: the policy's entropy, and KL(π_θ ‖ π_reference).
DENSE = frozenset({"entropy", "kl"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Needs:
    """What a piece of an algorithm reads, beyond its own rows of a mini-batch.

    logps: roles of policies whose log-probabilities it reads, from ROLES. `behavior` is always
    available. If a piece needs `sampler`, `behavior` is recomputed by the trainer's forward pass,
    so that the two differ only in rounding.
    whole_batch: it must see all rows of the mini-batch at once, however that is split into
    micro-batches and ranks.
    dense: quantities over the whole vocabulary that it differentiates, from DENSE.
    lengths: an advantage that reads the number of tokens of each response.

    Raises ValueError for an unknown name.
    """

    logps: frozenset[str] = frozenset()
    whole_batch: bool = False
    dense: frozenset[str] = frozenset()
    lengths: bool = False

    def __post_init__(self) -> None:
        for field_name, allowed in (("logps", ROLES), ("dense", DENSE)):
            for name in getattr(self, field_name) - allowed:
                raise ValueError(
                    f"needs.{field_name}={name}: must be of {', '.join(sorted(allowed))}"
                )

    def __or__(self, other: Needs) -> Needs:
        return Needs(
            logps=self.logps | other.logps,
            whole_batch=self.whole_batch or other.whole_batch,
            dense=self.dense | other.dense,
            lengths=self.lengths or other.lengths,
        )


TARGET = "_target_"  # the key of a configuration that names a class
CHECKED = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
Share = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=0, lt=1 << 63)]


@dataclass_transform(kw_only_default=True)
class Settings:
    """A group of values of the configuration. A subclass declares its fields like a dataclass, and
    pydantic turns it into one, with keyword arguments.

    Raises ValueError (pydantic's ValidationError) for an unknown or missing field, a value of
    another type, one out of range, as in `low: Annotated[float, Field(ge=0)]`, and a number that is
    not finite. A field of such a class also takes a mapping of its values.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        checked_dataclass(cls, kw_only=True, config=CHECKED)

    @classmethod
    def names(cls) -> list[str]:
        """The names of the fields."""
        return [each.name for each in fields(cls)]  # type: ignore[arg-type]

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Let a mapping stand for an object, which strict types would not."""
        return {**handler(source), "strict": False}


class Piece(Settings):
    """Base of every class that a config group can choose. The configuration names the class by its
    dotted path, under the key `_target_`.

    needs: what a piece of an algorithm reads beyond its own rows.
    formula: what it computes, as `str.format` fills it with the names that `describe` is given and
    the values of the fields; None for the first line of the docstring.
    imported: the fields that hold the dotted name of something to import.
    """

    needs: ClassVar[Needs] = Needs()
    formula: ClassVar[str | None] = None
    imported: ClassVar[tuple[str, ...]] = ()

    def describe(self, *names: Any, **_: Any) -> str:
        """One line. names: those of the ratio or advantage that it is applied to."""
        if self.formula is not None:
            return self.formula.format(*names, **vars(self))
        first = (type(self).__doc__ or type(self).__name__).splitlines()[0].rstrip(".")
        values = ", ".join(f"{name}={getattr(self, name)}" for name in self.names())
        return f"{first} ({values})" if values else first


def class_name(choice: Mapping[str, Any]) -> str:
    """The name of the class of a choice in a resolved configuration, without its module."""
    return str(choice[TARGET]).rpartition(".")[2]


class StepIndex(NamedTuple):
    """The position of a gradient step in a run; it seeds the randomness of the step.

    batch: the batch that the step trains on. epoch: the pass over that batch. mini_batch: the part
    of that pass. step: the number of earlier gradient steps. All count from 0.
    """

    batch: int
    epoch: int
    mini_batch: int
    step: int


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
class Response:
    """One sampled response: a turn of the policy, or alternating turns of policy and environment.

    tokens: token ids, including a sampled end token.
    logp: log-probability of each token under the policy that drew it, at the sampling temperature;
    0 for tokens of the environment, which is never read.
    finished: the policy ended its last turn; otherwise the response was cut at the length limit.
    mask: True for tokens of the policy, False for those of the environment.
    """

    tokens: list[int]
    logp: list[float]
    finished: bool
    mask: list[bool]

    @property
    def length(self) -> int:
        """Number of tokens of the policy."""
        return sum(self.mask)

    @property
    def turns(self) -> int:
        """Number of turns of the policy."""
        return sum(written for written, _ in groupby(self.mask))

    def then(self, after: Response, limit: int) -> Response:
        """This response continued by `after`, cut at `limit` tokens."""
        tokens = self.tokens + after.tokens
        return Response(
            tokens[:limit],
            (self.logp + after.logp)[:limit],
            after.finished and len(tokens) <= limit,
            (self.mask + after.mask)[:limit],
        )


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
    dropped: bool = False  # by the schedule, which leaves its response out of training

    @property
    def judged(self) -> bool:
        return not (self.timed_out or self.crashed or self.dropped)


@dataclass(frozen=True, slots=True)
class Rollouts:
    """B verified responses, group by group; a group holds the responses to one prompt.

    index: the number of the batch.
    versions: for each response the gradient steps that its policy had taken; that of its first
    token if several versions wrote it.
    token_versions: the same for each token of each response; None if each has one version.
    logps: log-probabilities of the response tokens under other policies, by role, from the
    trainer's forward pass; only the roles that some piece needs.
    redrawn: groups that were sampled again because all their rewards were equal. drawn: tokens
    that the policy sampled, including those of discarded groups.
    """

    index: int
    prompts: list[list[int]]  # B lists of prompt token ids
    responses: list[Response]  # B
    results: list[VerifierResult]  # B
    groups: list[int]  # B group ids, 0, 1, … in order
    versions: list[int]  # B
    token_versions: list[list[int]] | None = None
    logps: dict[str, list[list[float]]] = field(default_factory=dict)
    redrawn: int = 0
    drawn: int = 0
    # of rollout and reward in the worker, and of waiting in the trainer
    seconds: dict[str, float] = field(default_factory=dict)

    def of_groups(self, chosen: Sequence[int]) -> Rollouts:
        """The rows of these groups, in this order, with groups renumbered from 0."""
        members = defaultdict(list)
        for row, group in enumerate(self.groups):
            members[group].append(row)
        rows = [row for group in chosen for row in members[group]]
        return replace(
            self,
            prompts=[self.prompts[row] for row in rows],
            responses=[self.responses[row] for row in rows],
            results=[self.results[row] for row in rows],
            groups=[new for new, group in enumerate(chosen) for _ in members[group]],
            versions=[self.versions[row] for row in rows],
            token_versions=self.token_versions and [self.token_versions[row] for row in rows],
            logps={role: [logp[row] for row in rows] for role, logp in self.logps.items()},
        )

    @classmethod
    def joined(cls, parts: Sequence[Rollouts], index: int) -> Rollouts:
        """The groups of all parts in order; each of its seconds is the longest of the parts."""
        starts = accumulate((part.groups[-1] + 1 for part in parts), initial=0)
        return cls(
            index=index,
            prompts=[prompt for part in parts for prompt in part.prompts],
            responses=[response for part in parts for response in part.responses],
            results=[result for part in parts for result in part.results],
            groups=[
                start + g for start, part in zip(starts, parts, strict=False) for g in part.groups
            ],
            versions=[version for part in parts for version in part.versions],
            token_versions=parts[0].token_versions
            and [row for part in parts for row in part.token_versions or []],
            logps={
                role: [row for part in parts for row in part.logps[role]] for role in parts[0].logps
            },
            redrawn=sum(part.redrawn for part in parts),
            drawn=sum(part.drawn for part in parts),
            seconds={name: max(p.seconds[name] for p in parts) for name in parts[0].seconds},
        )


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcomes of a mini-batch of B rows, from which advantages are computed.

    rewards_B: float64. groups_B: integer ids; rows of one id answer the same prompt, and groups are
    complete. mask_BT: response tokens of the policy. finished_B: the policy ended its response;
    otherwise it was cut at the length limit. judged_B: the verifier returned a result.
    """

    rewards_B: Tensor
    groups_B: Tensor
    mask_BT: Tensor
    finished_B: Tensor
    judged_B: Tensor


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages and live tokens of a mini-batch.

    advantage_B: the factor of each sequence's log-probability gradient, float64.
    mask_BT: live tokens, those in the loss; a dropped sequence has none.
    counted_B: number of sequences of the row's group that count in denominators.
    group_tokens_B: number of their tokens.
    totals: of the whole mini-batch, over all micro-batches and ranks.
    """

    advantage_B: Tensor
    mask_BT: Tensor
    counted_B: Tensor
    group_tokens_B: Tensor
    totals: Totals

    def to(self, device: torch.device) -> Advantages:
        """On this device."""
        return Advantages(
            self.advantage_B.to(device),
            self.mask_BT.to(device),
            self.counted_B.to(device),
            self.group_tokens_B.to(device),
            self.totals,
        )

    def rows(self, index_B: Tensor, width: int) -> Advantages:
        """Some rows, cut to `width` tokens; the denominators stay those of the whole mini-batch."""
        return Advantages(
            self.advantage_B[index_B],
            self.mask_BT[index_B, :width],
            self.counted_B[index_B],
            self.group_tokens_B[index_B],
            self.totals,
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """Denominators of a mini-batch: counted tokens, and groups with a counted sequence."""

    tokens: int
    groups: int


class Undeclared(KeyError):
    """A piece reads log-probabilities or a dense quantity that no piece's `needs` declares."""

    def __init__(self, name: str):
        super().__init__(f"{name}: no piece declares it in its `needs`")
        self.name = name


class _Given(dict[str, Any]):
    """The tensors that pieces declare, by name."""

    def __missing__(self, name: str) -> Any:
        raise Undeclared(name)


@dataclass(frozen=True, slots=True)
class LossInput:
    """The input of a loss: a whole mini-batch, or some of its rows. Tensors are B x T unless named
    otherwise; positions outside `mask_BT` may hold anything.

    logp_BT: of the current policy, differentiable.
    logps: of other policies by role, without gradient: `behavior`, and those that a piece needs.
    groups_B: rows of one id answer the same prompt.
    versions_B: for each row the gradient steps that its policy had taken.
    token_versions_BT: the same for each token; None if all of a row come from one version.
    dense: what `Needs.dense` names, differentiable.

    Reading a role or a dense quantity that no piece declares raises Undeclared.
    """

    logp_BT: Tensor
    logps: Mapping[str, Tensor]
    advantages: Advantages
    groups_B: Tensor
    versions_B: Tensor
    index: StepIndex
    dense: Mapping[str, Tensor] = field(default_factory=dict)
    token_versions_BT: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "logps", _Given(self.logps))
        object.__setattr__(self, "dense", _Given(self.dense))

    @property
    def mask_BT(self) -> Tensor:
        """Live tokens."""
        return self.advantages.mask_BT

    @property
    def advantage_B(self) -> Tensor:
        """In the dtype of the log-probabilities."""
        return self.advantages.advantage_B.to(self.logp_BT.dtype)

    @property
    def age_BX(self) -> Tensor:
        """Gradient steps since the version that drew a token, X = T, or a row, X = 1."""
        if self.token_versions_BT is None:
            return self.index.step - self.versions_B[:, None]
        return self.index.step - self.token_versions_BT

    def log_ratio_BT(self, role: str = "behavior") -> Tensor:
        """log π_θ/π_role of live tokens, detached; 0 elsewhere."""
        difference_BT = (self.logp_BT - self.logps[role]).detach()
        return difference_BT.where(self.mask_BT, 0.0)


@dataclass(frozen=True, slots=True)
class LossOutput:
    """loss: a scalar to differentiate. log_ratio_BT: log ρ of each live token. clip_log_ratio_BT:
    log of the clip's ratio, which may differ from ρ, such as one for the whole sequence. keep_BT:
    live tokens that the clip keeps."""

    loss: Tensor
    log_ratio_BT: Tensor
    clip_log_ratio_BT: Tensor
    keep_BT: Tensor


@dataclass(frozen=True, slots=True)
class SampleKey:
    """Names the random numbers of one response, so that it does not depend on batching."""

    seed: int
    stream: int  # TRAIN or EVAL of rec_experiments.rng
    batch: int
    group: int
    response: int
    turn: int = 0  # of the policy, within its response
    attempt: int = 0  # of the group, which is sampled again if its rewards are equal


class Sampler(Protocol):
    """Samples responses from a policy."""

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Use these weights from now on."""

    def sample(
        self, prompts: list[list[int]], draws: list[list[SampleKey]], temperature: float
    ) -> list[list[Response]]:
        """One response per draw, prompt by prompt, in order. Temperature 0 is greedy."""


@runtime_checkable
class InFlightSampler(Sampler, Protocol):
    """A sampler whose weights may change while it writes."""

    def sample_in_flight(
        self,
        prompts: list[list[int]],
        draws: list[list[SampleKey]],
        temperature: float,
        policies: Sequence[tuple[int, Mapping[str, Tensor]]],
        keeps_cache: bool,
    ) -> list[list[Response]]:
        """As `sample`, by several policies, each given by the first token that it samples (0 for
        the first policy) and its weights.

        keeps_cache: keep the keys and values of older policies, instead of computing them again.
        Afterwards it is undefined which weights are loaded.
        """


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
