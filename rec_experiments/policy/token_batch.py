"""Sequences as a model takes them: in rows that are padded to one width, or in one row without.

Both say the same of themselves, so that the forward pass does not know which it has.
"""

from typing import Any, NamedTuple

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
    return TokenBatch(torch.tensor(ids), torch.tensor(attended), T, _places(responses, T))


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
        _places(responses, T),
        (len(responses), T),
    )


def _places(responses: list[list[int]], T: int) -> Tensor:
    places = [b * T + t for b, response in enumerate(responses) for t in range(len(response))]
    return torch.tensor(places).long()
