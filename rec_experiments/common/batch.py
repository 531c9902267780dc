"""Batches of prompts and responses as tensors, on their way from the sampler to the loss.

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from rec_experiments.common.problems import VerifierResult

if TYPE_CHECKING:
    import torch

    Tensor = torch.Tensor
else:  # torch takes seconds to import, and many commands do not need it
    Tensor = Any

R = TypeVar("R")


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
class SampleKey:
    """Names the random numbers of one response, so that it does not depend on batching."""

    seed: int
    stream: int  # TRAIN or EVAL of rec_experiments.common.rng
    batch: int
    group: int
    response: int
    turn: int = 0  # of the policy, within its response
    attempt: int = 0  # of the group, which is sampled again if its rewards are equal


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
