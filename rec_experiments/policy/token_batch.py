"""Token sequences as model inputs: padded to one width, packed into one row, or with shared
prompts, where all responses to a prompt follow it in one row.

The three kinds have one interface, so the forward pass treats them alike.
"""

from collections import defaultdict
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from rec_experiments.common.batch import Sequences

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


def collate(rows: Sequences, pad_id: int) -> TokenBatch:
    """A padded batch whose responses start in the same column."""
    P, T = rows.prompt_BP.shape[1], rows.token_BT.shape[1]
    place_L = torch.arange(P + T)
    first_B1, end_B1 = (P - rows.prompt_length_B)[:, None], (P + rows.length_B)[:, None]
    attended_BL = (place_L >= first_B1) & (place_L < end_B1)
    ids_BL = torch.cat([rows.prompt_BP, rows.token_BT], dim=1).where(attended_BL, pad_id)
    return TokenBatch(ids_BL, attended_BL.long(), T, places(rows.live_BT))


def packed(rows: Sequences) -> PackedBatch:
    """A packed batch. No prompt and no response may be empty."""
    ids_BL, place_T = rows.whole_BL, torch.arange(rows.token_BT.shape[1])
    read_B = rows.prompt_length_B + rows.length_B - 1  # the last token is not read
    place_L = torch.arange(ids_BL.shape[1]).expand_as(ids_BL)
    is_read_BL = place_L < read_B[:, None]
    first_B = read_B.cumsum(0) - read_B + rows.prompt_length_B - 1  # it predicts the first token
    live_BT = rows.live_BT
    return PackedBatch(
        ids_BL[is_read_BL][None],
        place_L[is_read_BL][None],
        (first_B[:, None] + place_T)[live_BT],
        rows.token_BT[live_BT],
        places(live_BT),
        (len(live_BT), live_BT.shape[1]),
    )


def shared(rows: Sequences, pad_id: int) -> SharedBatch:
    """A batch with a row for each distinct prompt. No prompt and no response may be empty."""
    members: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    prompts = zip(rows.prompt_length_B.tolist(), rows.prompt_BP.numpy(), strict=True)
    for b, (length, ids_P) in enumerate(prompts):
        members[length, ids_P.tobytes()].append(b)
    order_B = torch.tensor([b for of in members.values() for b in of])
    row_B = torch.tensor([g for g, of in enumerate(members.values()) for _ in of])
    number_B = torch.tensor([k for of in members.values() for k in range(1, 1 + len(of))])
    B, T = rows.token_BT.shape
    token_BT, prompt_B = rows.token_BT[order_B], rows.prompt_length_B[order_B]
    length_B, place_T = rows.length_B[order_B], torch.arange(T)
    read_B = length_B - 1  # the last token is not read
    # Where a response starts in its row: after the prompt and what is read of those before it.
    before_B = read_B.cumsum(0) - read_B
    start_B = prompt_B + before_B - before_B[number_B == 1][row_B]
    G, L = len(members), int((start_B + read_B).max())
    ids_GL = torch.full((G, L), pad_id)
    position_GL, part_GL = torch.zeros(G, L, dtype=torch.long), torch.full((G, L), -1)
    first_G = order_B[number_B == 1]
    is_prompt_GL = torch.arange(L) < rows.prompt_length_B[first_G][:, None]
    width = min(L, rows.prompt_BP.shape[1] + T)
    ids_GL[:, :width] = rows.whole_BL[first_G, :width].where(is_prompt_GL[:, :width], pad_id)
    position_GL[is_prompt_GL] = torch.arange(L).expand(G, L)[is_prompt_GL]
    part_GL[is_prompt_GL] = 0
    is_read_BT = place_T < read_B[:, None]
    at = row_B[:, None].expand(B, T)[is_read_BT], (start_B[:, None] + place_T)[is_read_BT]
    ids_GL[at] = token_BT[is_read_BT]
    position_GL[at] = (prompt_B[:, None] + place_T)[is_read_BT]
    part_GL[at] = number_B[:, None].expand(B, T)[is_read_BT]
    live_BT = place_T < length_B[:, None]
    keep_BT = torch.cat([prompt_B[:, None] - 1, start_B[:, None] + place_T[:-1]], dim=1)
    return SharedBatch(
        ids_GL,
        position_GL,
        part_GL,
        (row_B[:, None] * L + keep_BT)[live_BT],
        token_BT[live_BT],
        (order_B[:, None] * T + place_T)[live_BT],
        (B, T),
    )


def places(live_BT: Tensor) -> Tensor:
    """The positions of True in B x T, row by row."""
    return live_BT.flatten().nonzero()[:, 0]
