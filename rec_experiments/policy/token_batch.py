"""Sequences as a model takes them: in rows that are padded to one width, in one row without, or
with all responses to a prompt in one row behind it.

All say the same of themselves, so that the forward pass does not know which it has.
"""

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class TokenBatch(NamedTuple):
    """B sequences of P prompt tokens, padded left, and T response tokens, padded right."""

    input_ids: Tensor  # B x (P + T)
    attention_mask: Tensor  # B x (P + T)
    response_length: int  # T
    live_N: Tensor  # places of the N response tokens that are no padding, in B x T read by rows

    def to(self, device: torch.device) -> "TokenBatch":
        return TokenBatch(
            self.input_ids.to(device),
            self.attention_mask.to(device),
            self.response_length,
            self.live_N.to(device),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """B and T."""
        return len(self.input_ids), self.response_length

    @property
    def target_N(self) -> Tensor:
        return self.input_ids[:, -self.response_length :].flatten()[self.live_N]

    def inputs(self) -> dict[str, Any]:
        """Of the model. Its head sees what comes before each response token, B x T; the last token
        is not read: nothing comes after it."""
        mask = self.attention_mask[:, :-1]
        return {
            "input_ids": self.input_ids[:, :-1],
            "attention_mask": mask,
            "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
            "logits_to_keep": self.response_length,
        }

    def live(self, seen: Tensor) -> Tensor:
        """Of what the head sees, N x D."""
        return seen.flatten(0, 1)[self.live_N]


class PackedBatch(NamedTuple):
    """B sequences in one row, each without its last token, and nothing between them: attention ends
    where positions begin anew (transformers tells sequences apart by that, and flash attention
    computes none of what lies between). Responses have at most T tokens, N together."""

    input_ids: Tensor  # 1 x tokens
    position_ids: Tensor  # 1 x tokens
    keep_N: Tensor  # the place before each response token, in that row
    target_N: Tensor
    live_N: Tensor  # places of the response tokens in B x T read by rows
    shape: tuple[int, int]  # B and T

    def to(self, device: torch.device) -> "PackedBatch":
        return PackedBatch(
            self.input_ids.to(device),
            self.position_ids.to(device),
            self.keep_N.to(device),
            self.target_N.to(device),
            self.live_N.to(device),
            self.shape,
        )

    def inputs(self) -> dict[str, Any]:
        """Of the model. Its head sees what comes before each response token, 1 x N."""
        return {
            "input_ids": self.input_ids,
            "position_ids": self.position_ids,
            "logits_to_keep": self.keep_N,
        }

    def live(self, seen: Tensor) -> Tensor:
        """Of what the head sees, N x D."""
        return seen[0]


class SharedBatch(NamedTuple):
    """B sequences of G prompts: each row is a prompt and the responses to it, one after the other,
    each without its last token and as if it stood right behind the prompt; padded right to L.
    Responses have at most T tokens, N together."""

    input_ids: Tensor  # G x L
    position_ids: Tensor  # G x L
    part_GL: Tensor  # 0 in the prompt, k in its response number k, -1 in padding
    keep_N: Tensor  # the place before each response token, in G x L read by rows
    target_N: Tensor
    live_N: Tensor  # places of the response tokens in B x T read by rows
    shape: tuple[int, int]  # B and T

    def to(self, device: torch.device) -> "SharedBatch":
        return SharedBatch(
            self.input_ids.to(device),
            self.position_ids.to(device),
            self.part_GL.to(device),
            self.keep_N.to(device),
            self.target_N.to(device),
            self.live_N.to(device),
            self.shape,
        )

    def inputs(self) -> dict[str, Any]:
        """Of the model. Its head sees every token, G x L. A token attends to what comes before it
        in its own response and in the prompt; padding too, so that no row of attention is empty."""
        seer_GL1, seen_G1L = self.part_GL[:, :, None], self.part_GL[:, None]
        mask_GLL = ((seen_G1L == 0) | (seen_G1L == seer_GL1)).tril()
        return {
            "input_ids": self.input_ids,
            "attention_mask": mask_GLL[:, None],
            "position_ids": self.position_ids,
        }

    def live(self, seen: Tensor) -> Tensor:
        """Of what the head sees, N x D."""
        return seen.flatten(0, 1)[self.keep_N]


Batch = TokenBatch | PackedBatch | SharedBatch


def collate(
    prompts: list[list[int]], responses: list[list[int]], pad_id: int, response_width: int = 0
) -> TokenBatch:
    """A batch with the responses aligned at one column. `response_width` is a least T."""
    P = max(len(prompt) for prompt in prompts)
    T = max(response_width, *(len(response) for response in responses))
    rows = [
        (P - len(prompt), prompt + response, T - len(response))  # padding left, tokens, right
        for prompt, response in zip(prompts, responses, strict=True)
    ]
    ids = [[pad_id] * left + tokens + [pad_id] * right for left, tokens, right in rows]
    attended = [[0] * left + [1] * len(tokens) + [0] * right for left, tokens, right in rows]
    return TokenBatch(torch.tensor(ids), torch.tensor(attended), T, response_places(responses, T))


def packed(prompts: list[list[int]], responses: list[list[int]]) -> PackedBatch:
    """The same sequences in one row, without padding. Every prompt has a token, every response
    too."""
    T = max(len(response) for response in responses)
    ids: list[int] = []
    positions: list[int] = []
    keep: list[int] = []
    for prompt, response in zip(prompts, responses, strict=True):
        first = len(ids) + len(prompt) - 1  # what the first response token comes after
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
    """The same sequences, a row for each prompt that differs. Every prompt has a token, every
    response too."""
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
    length_B = np.array([len(response) for response in responses])
    return torch.from_numpy(np.flatnonzero(np.arange(T) < length_B[:, None]))
