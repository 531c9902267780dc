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

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
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

R = TypeVar("R")
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
    def field_names(cls) -> list[str]:
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
        values = ", ".join(f"{name}={getattr(self, name)}" for name in self.field_names())
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


class Rows:
    """B rows as tensors, which an index selects and which can be joined.

    The name of a field ends in its shape. B x T is padded on the right to the longest response,
    B x P on the left to the longest prompt; B x X is B x T or, if all tokens of a row share a
    value, B x 1.
    """

    token_BT: Tensor
    length_B: Tensor

    def __len__(self) -> int:
        return len(self.length_B)

    def state(self) -> dict[str, Any]:
        """All fields by name, as a file holds them; the class takes them as its arguments."""
        return {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]

    @property
    def live_BT(self) -> Tensor:
        """The tokens of each response: True but in padding."""
        import torch

        return torch.arange(self.token_BT.shape[1]) < self.length_B[:, None]

    def rows(self, index_B: Tensor) -> Self:
        """Copies of these rows, in this order, without padding that none of them needs. An index
        may repeat."""
        T = int(self.length_B[index_B].max())
        prompt_B = getattr(self, "prompt_length_B", None)
        P = 0 if prompt_B is None else int(prompt_B[index_B].max())

        def chosen(name: str, values: list[Tensor]) -> Tensor:
            if name.endswith("_B"):
                return values[0][index_B]
            return values[0][index_B, -P:] if name.endswith("P") else values[0][index_B, :T]

        return _each(chosen, [self])

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """The rows of all parts, in order. Fields that are no tensors are those of the first."""
        return _each(_stacked, parts)


def _stacked(name: str, values: list[Tensor]) -> Tensor:
    """Rows below each other, padded with zeros to one width."""
    import torch
    from torch.nn.functional import pad

    if not name.endswith("_B"):
        width = max(x.shape[1] for x in values)
        missing = [width - x.shape[1] for x in values]
        sides = [(n, 0) if name.endswith("P") else (0, n) for n in missing]
        values = [pad(x, side) for x, side in zip(values, sides, strict=True)]
    return torch.cat(values)


def _each(change: Callable[[str, list[Tensor]], Tensor], parts: Sequence[R]) -> R:
    """The first part with each of its tensors changed, given its name and that of all parts."""
    changed: dict[str, Any] = {}
    for each in fields(parts[0]):  # type: ignore[arg-type]
        values = [getattr(part, each.name) for part in parts]
        if re.search("_[A-Z]+$", each.name):
            changed[each.name] = change(each.name, values)
        elif each.name == "logps":
            changed["logps"] = {
                role: change("logp_BT", [logps[role] for logps in values]) for role in values[0]
            }
    return replace(parts[0], **changed)  # type: ignore[type-var]


def padded(lists: Sequence[Sequence[float]], dtype: Any, left: bool = False) -> Tensor:
    """The lists as the rows of a tensor of this dtype, padded with zeros."""
    import torch

    width = max(map(len, lists))
    fill = [[0] * (width - len(row)) for row in lists]
    pairs = zip(fill, lists, strict=True)
    rows = [[*zeros, *row] if left else [*row, *zeros] for zeros, row in pairs]
    return torch.tensor(rows, dtype=dtype).reshape(len(lists), width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Responses(Rows):
    """B sampled responses of up to T tokens: a turn of the policy, or alternating turns of policy
    and environment.

    token_BT: ids, including a sampled end token; 0 in padding. length_B: tokens. mask_BT: True for
    tokens of the policy. finished_B: the policy ended its last turn; otherwise the response was cut
    at the length limit. logp_BT: log-probability under the policy that drew a token, at the
    sampling temperature, as the sampler reports it; 0 for tokens of the environment, which is never
    read.
    """

    token_BT: Tensor
    length_B: Tensor
    mask_BT: Tensor
    finished_B: Tensor
    logp_BT: Tensor

    @classmethod
    def of(
        cls,
        tokens: Sequence[Sequence[int]],
        logps: Sequence[Sequence[float]] | None = None,
        finished: Sequence[bool] | None = None,
        masks: Sequence[Sequence[bool]] | None = None,
    ) -> Self:
        """Lists as tensors; by default every response is a finished turn of log-probabilities 0."""
        import torch

        zeros = [[0.0] * len(row) for row in tokens]
        return cls(
            token_BT=padded(tokens, torch.int64),
            length_B=torch.tensor([len(row) for row in tokens]),
            mask_BT=padded(masks or [[True] * len(row) for row in tokens], torch.bool),
            finished_B=torch.tensor(finished or [True] * len(tokens)),
            logp_BT=padded(logps or zeros, torch.float32),
        )

    def tokens(self) -> list[list[int]]:
        """The ids of each response, without padding."""
        pairs = zip(self.token_BT.tolist(), self.length_B.tolist(), strict=True)
        return [row[:length] for row, length in pairs]

    def masks(self) -> list[list[bool]]:
        """The mask of each response, without padding."""
        pairs = zip(self.mask_BT.tolist(), self.length_B.tolist(), strict=True)
        return [row[:length] for row, length in pairs]

    @property
    def written_B(self) -> Tensor:
        """Tokens of the policy."""
        return self.mask_BT.sum(1)

    @property
    def turns_B(self) -> Tensor:
        """Turns of the policy."""
        began_BT = self.mask_BT[:, 1:] & ~self.mask_BT[:, :-1]
        return began_BT.sum(1) + self.mask_BT[:, 0]

    def then(self, after: Self, limit: int) -> Self:
        """Each response continued by one of `after`, cut at `limit` tokens."""
        import torch

        length_B = self.length_B + after.length_B
        place_1T = torch.arange(min(limit, int(length_B.max())))[None]
        own_BT = place_1T < self.length_B[:, None]
        later_BT = place_1T - self.length_B[:, None]
        is_later_BT = ~own_BT & (later_BT < after.length_B[:, None])

        def spliced(name: str, values: list[Tensor]) -> Tensor:
            mine, theirs = values
            if name.endswith("_B"):
                return theirs
            mine = mine[:, place_1T[0].clamp(max=mine.shape[1] - 1)]
            theirs = theirs.gather(1, later_BT.clamp(0, theirs.shape[1] - 1))
            return mine * own_BT + theirs * is_later_BT

        return replace(
            _each(spliced, [self, after]),
            length_B=length_B.clamp(max=limit),
            finished_B=after.finished_B & (length_B <= limit),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences(Rows):
    """B sequences: a prompt of up to P tokens, padded on the left, and a response of up to T,
    padded on the right. Token ids are 0 in padding."""

    prompt_BP: Tensor
    prompt_length_B: Tensor
    token_BT: Tensor
    length_B: Tensor

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> Self:
        """Lists of token ids as tensors."""
        import torch

        return cls(
            prompt_BP=padded(prompts, torch.int64, left=True),
            prompt_length_B=torch.tensor([len(row) for row in prompts]),
            token_BT=padded(responses, torch.int64),
            length_B=torch.tensor([len(row) for row in responses]),
        )

    @property
    def whole_BL(self) -> Tensor:
        """Prompt and response, one directly after the other, padded on the right."""
        import torch

        both_BL = torch.cat([self.prompt_BP, self.token_BT], dim=1)
        width = both_BL.shape[1]
        start_B = self.prompt_BP.shape[1] - self.prompt_length_B
        place_BL = (torch.arange(width) + start_B[:, None]).clamp(max=width - 1)
        is_live_BL = torch.arange(width) < (self.prompt_length_B + self.length_B)[:, None]
        return both_BL.gather(1, place_BL) * is_live_BL


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts(Responses):
    """B verified responses, group by group; a group holds the responses to one prompt.

    index: the number of the batch. prompt_BP: padded on the left. group_B: 0, 1, … in order.
    version_BX: the gradient steps that the policy had taken that drew a token, X = T, or all tokens
    of a row, X = 1. logps: B x T each, log-probabilities under other policies by role, from the
    trainer's forward pass; only the roles that some piece needs. Under the role `behavior` they
    take the place of `logp_BT`, which is then the sampler's.
    reward_B, accuracy_B: float64, as in `VerifierResult`. judged_B: the verifier gave a result, and
    training uses it.
    redrawn: groups that were sampled again because all their rewards were equal. drawn: tokens that
    the policy sampled, including those of discarded groups. seconds: of rollout and reward in the
    worker, and of waiting in the trainer.
    """

    index: int
    prompt_BP: Tensor
    prompt_length_B: Tensor
    group_B: Tensor
    version_BX: Tensor
    reward_B: Tensor
    accuracy_B: Tensor
    timed_out_B: Tensor
    crashed_B: Tensor
    judged_B: Tensor
    logps: dict[str, Tensor] = field(default_factory=dict)
    redrawn: int = 0
    drawn: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @classmethod
    def verified(
        cls,
        responses: Responses,
        *,
        prompts: Sequence[Sequence[int]],
        groups: Sequence[int],
        results: Sequence[VerifierResult],
        version_BX: Tensor | None = None,
        index: int = 0,
        seconds: dict[str, float] | None = None,
    ) -> Rollouts:
        """Responses with the prompt, the group and the verifier's result of each; by default drawn
        by the initial policy."""
        import torch

        of_results: dict[str, Any] = {
            f"{name}_B": torch.tensor([getattr(result, name) for result in results], dtype=dtype)
            for name, dtype in [
                ("reward", torch.float64),
                ("accuracy", torch.float64),
                ("timed_out", torch.bool),
                ("crashed", torch.bool),
            ]
        }
        return cls(
            **responses.state(),
            **of_results,
            index=index,
            prompt_BP=padded(prompts, torch.int64, left=True),
            prompt_length_B=torch.tensor([len(prompt) for prompt in prompts]),
            group_B=torch.tensor(groups),
            version_BX=torch.zeros(len(results), 1, dtype=torch.int64)
            if version_BX is None
            else version_BX,
            judged_B=~(of_results["timed_out_B"] | of_results["crashed_B"]),
            seconds=seconds or {},
        )

    @property
    def groups(self) -> int:
        """The number of groups."""
        return int(self.group_B[-1]) + 1

    @property
    def sequences(self) -> Sequences:
        """The tokens of prompts and responses."""
        return Sequences(
            prompt_BP=self.prompt_BP,
            prompt_length_B=self.prompt_length_B,
            token_BT=self.token_BT,
            length_B=self.length_B,
        )

    def of_groups(self, chosen: Sequence[int]) -> Rollouts:
        """The rows of these groups, in this order, with groups renumbered from 0."""
        import torch

        place_G = torch.full((self.groups,), -1)
        place_G[torch.tensor(chosen)] = torch.arange(len(chosen))
        place_B = place_G[self.group_B]
        index_B = place_B.argsort(stable=True)[int((place_B < 0).sum()) :]
        return replace(self.rows(index_B), group_B=place_B[index_B])

    @classmethod
    def of_parts(cls, parts: Sequence[Rollouts], index: int) -> Rollouts:
        """The groups of all parts in order; each of its seconds is the longest of the parts."""
        import torch

        starts = accumulate((part.groups for part in parts), initial=0)
        groups = [start + part.group_B for start, part in zip(starts, parts, strict=False)]
        return replace(
            cls.joined(parts),
            index=index,
            group_B=torch.cat(groups),
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
    version_BX: the gradient steps that the policy had taken that drew a token, X = T, or all tokens
    of a row, X = 1.
    dense: what `Needs.dense` names, differentiable.

    Reading a role or a dense quantity that no piece declares raises Undeclared.
    """

    logp_BT: Tensor
    logps: Mapping[str, Tensor]
    advantages: Advantages
    groups_B: Tensor
    version_BX: Tensor
    index: StepIndex
    dense: Mapping[str, Tensor] = field(default_factory=dict)

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
        return self.index.step - self.version_BX

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
    ) -> Responses:
        """One response per draw, prompt by prompt, in order, on the CPU. Temperature 0 is
        greedy."""


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
    ) -> Responses:
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
