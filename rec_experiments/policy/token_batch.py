"""Token sequences as model inputs: padded to one width, packed into one row, or with shared
prompts, where all responses to a prompt follow it in one row.

The three kinds have one interface, so the forward pass treats them alike.
"""

from collections import defaultdict
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

AnyBatch = TypeVar("AnyBatch", bound=NamedTuple)


def _moved(batch: AnyBatch, device: torch.device) -> AnyBatch:
    tensors = {k: x.to(device) for k, x in batch._asdict().items() if isinstance(x, Tensor)}
    return batch._replace(**tensors)


class TokenBatch(NamedTuple):
    """B sequences of P prompt tokens, padded left, and T response tokens, padded right."""

    input_ids: Tensor  # B x (P + T)
    attention_mask: Tensor  # B x (P + T)
    response_length: int  # T
    live_N: Tensor  # positions of the N response tokens in B x T, row by row; no padding

    def to(self, device: torch.device) -> "TokenBatch":
        return _moved(self, device)

    @property
    def shape(self) -> tuple[int, int]:
        """B and T."""
        return len(self.input_ids), self.response_length

    @property
    def target_N(self) -> Tensor:
        return self.input_ids[:, -self.response_length :].flatten()[self.live_N]

    def inputs(self) -> dict[str, Any]:
        """Arguments of the model. Its head reads the position before each response token, B x T;
        the last token of each row predicts nothing and is not read."""
        mask = self.attention_mask[:, :-1]
        return {
            "input_ids": self.input_ids[:, :-1],
            "attention_mask": mask,
            "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
            "logits_to_keep": self.response_length,
        }

    def live(self, seen: Tensor) -> Tensor:
        """The hidden states that predict the response tokens, N x D."""
        return seen.flatten(0, 1)[self.live_N]


class PackedBatch(NamedTuple):
    """B sequences packed into one row, each without its last token. Attention ends where positions
    restart at 0: transformers separates sequences by that, and flash attention skips what lies
    between them. Responses have at most T tokens each, N together."""

    input_ids: Tensor  # 1 x tokens
    position_ids: Tensor  # 1 x tokens
    keep_N: Tensor  # the position before each response token, in that row
    target_N: Tensor
    live_N: Tensor  # positions of the response tokens in B x T, row by row
    shape: tuple[int, int]  # B and T

    def to(self, device: torch.device) -> "PackedBatch":
        return _moved(self, device)

    def inputs(self) -> dict[str, Any]:
        """Arguments of the model. Its head reads the position before each response token, 1 x N."""
        return {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "logits_to_keep": self.keep_N,
        }

    def live(self, seen: Tensor) -> Tensor:
        """The hidden states that predict the response tokens, N x D."""
        return seen[0]


class SharedBatch(NamedTuple):
    """B sequences with G shared prompts: each row is a prompt and its responses, one after the
    other, padded right to L. Each response lacks its last token; its positions and attention are as
    if it directly followed the prompt. Responses have at most T tokens each, N together."""

    input_ids: Tensor  # G x L
    position_ids: Tensor  # G x L
    part_GL: Tensor  # 0 in the prompt, k in its k-th response, -1 in padding
    keep_N: Tensor  # the position before each response token in G x L, row by row
    target_N: Tensor
    live_N: Tensor  # positions of the response tokens in B x T, row by row
    shape: tuple[int, int]  # B and T

    def to(self, device: torch.device) -> "SharedBatch":
        return _moved(self, device)

    def inputs(self) -> dict[str, Any]:
        """Arguments of the model. Its head reads every token, G x L. A token attends to the prompt
        and to earlier tokens of its own response; so does padding, or its attention were empty."""
        query_GL1, key_G1L = self.part_GL[:, :, None], self.part_GL[:, None]
        mask_GLL = ((key_G1L == 0) | (key_G1L == query_GL1)).tril()
        return {
            "input_ids": self.input_ids,
            "attention_mask": mask_GLL[:, None],
            "position_ids": self.position_ids,
        }

    def live(self, seen: Tensor) -> Tensor:
        """The hidden states that predict the response tokens, N x D."""
        return seen.flatten(0, 1)[self.keep_N]


Batch = TokenBatch | PackedBatch | SharedBatch


def collate(prompts: list[list[int]], responses: list[list[int]], pad_id: int) -> TokenBatch:
    """A padded batch whose responses start in the same column."""
    P = max(len(prompt) for prompt in prompts)
    T = max(map(len, responses))
    rows = [
        (P - len(prompt), prompt + response, T - len(response))  # padding, tokens, padding
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    ids = [[pad_id] * left + tokens + [pad_id] * right for left, tokens, right in rows]
    attended = [[0] * left + [1] * len(tokens) + [0] * right for left, tokens, right in rows]
    return TokenBatch(torch.tensor(ids), torch.tensor(attended), T, response_places(responses, T))


def packed(prompts: list[list[int]], responses: list[list[int]]) -> PackedBatch:
    """A packed batch. No prompt and no response may be empty."""
    T = max(len(response) for response in responses)
    ids: list[int] = []
    positions: list[int] = []
    keep: list[int] = []
    for prompt, response in zip(prompts, responses, strict=True):
        first = len(ids) + len(prompt) - 1  # the position before the first response token
        keep += range(first, first + len(response))
        read = (prompt + response)[:-1]
        ids += read
        positions += range(len(read))
    return PackedBatch(
        torch.tensor([ids]),
        torch.tensor([positions]),
        torch.tensor(keep),
        torch.tensor([token for response in responses for token in response]),
        response_places(responses, T),
        (len(responses), T),
    )


def shared(prompts: list[list[int]], responses: list[list[int]], pad_id: int) -> SharedBatch:
    """A batch with a row for each distinct prompt. No prompt and no response may be empty."""
    T = max(len(response) for response in responses)
    members = defaultdict(list)
    for b, prompt in enumerate(prompts):
        members[tuple(prompt)].append(b)
    groups = list(members.values())
    L = max(len(prompts[of[0]]) + sum(len(responses[b]) - 1 for b in of) for of in groups)
    ids: list[list[int]] = []
    positions: list[list[int]] = []
    parts: list[list[int]] = []
    keep: list[int] = []
    target: list[int] = []
    live: list[int] = []
    for g, of in enumerate(groups):
        prompt = prompts[of[0]]
        row, place, part = [*prompt], [*range(len(prompt))], [0] * len(prompt)
        for k, b in enumerate(of, 1):
            read = responses[b][:-1]
            keep += [g * L + n for n in (len(prompt) - 1, *range(len(row), len(row) + len(read)))]
            target += responses[b]
            live += range(b * T, b * T + len(responses[b]))
            row += read
            place += range(len(prompt), len(prompt) + len(read))
            part += [k] * len(read)
        padding = L - len(row)
        ids.append(row + [pad_id] * padding)
        positions.append(place + [0] * padding)
        parts.append(part + [-1] * padding)
    return SharedBatch(
        torch.tensor(ids),
        torch.tensor(positions),
        torch.tensor(parts),
        torch.tensor(keep),
        torch.tensor(target),
        torch.tensor(live),
        (len(responses), T),
    )


def response_places(responses: list[list[int]], T: int) -> Tensor:
    """Positions of all response tokens in B x T, row by row."""
    length_B = np.array([len(response) for response in responses])
    return torch.from_numpy(np.flatnonzero(np.arange(T) < length_B[:, None]))
