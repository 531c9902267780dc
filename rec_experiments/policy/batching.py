"""How a mini-batch is split over ranks and into micro-batches, and how the sequences of a
micro-batch are laid out for a model: padded to one width, packed into one row, in rows with shared
prompts, or as a tree of prefixes.

Split and layout change memory, speed and rounding, and nothing else.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from rec_experiments.common.batch import Sequences
from rec_experiments.common.distributed import World

T = TypeVar("T")


class TokenSequence(NamedTuple):
    """One of the distinct sequences of a mini-batch, computed once for all `rows` that equal it.

    prompt, response: their tokens. group: equal for sequences with the same prompt.
    """

    prompt: int
    response: int
    group: int
    rows: list[int]

    @property
    def length(self) -> int:
        return self.prompt + self.response


def distinct(sequences: Sequences) -> list[TokenSequence]:
    """The distinct sequences of a mini-batch, in order of their first rows."""
    groups: dict[bytes, int] = {}
    found: dict[tuple[int, bytes], TokenSequence] = {}
    lengths = sequences.prompt_length_B.tolist(), sequences.length_B.tolist()
    for row, (P, T, ids_L) in enumerate(zip(*lengths, sequences.whole_BL.numpy(), strict=True)):
        group = groups.setdefault(ids_L[:P].tobytes(), len(groups))
        new = TokenSequence(P, T, group, [])
        found.setdefault((P, ids_L[: P + T].tobytes()), new).rows.append(row)
    return list(found.values())


def by_prompt(sequences: Sequence[TokenSequence]) -> list[list[TokenSequence]]:
    """The sequences grouped by prompt, in order of first occurrence."""
    found = defaultdict(list)
    for sequence in sequences:
        found[sequence.group].append(sequence)
    return list(found.values())


def rows_and_places(part: Sequence[TokenSequence]) -> tuple[Tensor, Tensor]:
    """All rows that these sequences stand for, and the place of each one's sequence among them."""
    rows = [row for sequence in part for row in sequence.rows]
    places = [place for place, sequence in enumerate(part) for _ in sequence.rows]
    return torch.tensor(rows), torch.tensor(places)


def first_rows(part: Sequence[TokenSequence]) -> Tensor:
    """One row of each of these sequences."""
    return torch.tensor([sequence.rows[0] for sequence in part])


@dataclass(frozen=True, slots=True)
class Limits:
    """The most sequences and tokens of a micro-batch, None for no limit. Tokens include padding,
    unless sequences are packed. shared: each prompt is computed once for all of its responses in
    the micro-batch, which follow it in one row."""

    sequences: int | None
    tokens: int | None
    packed: bool = False
    shared: bool = False

    def admit(self, part: list[TokenSequence]) -> bool:
        """Whether these sequences fit into one micro-batch."""
        return (self.sequences is None or len(part) <= self.sequences) and (
            self.tokens is None or self.computed(part) <= self.tokens
        )

    def computed(self, part: list[TokenSequence]) -> int:
        """Tokens that a micro-batch computes, including padding."""
        if self.packed:
            return sum(sequence.length for sequence in part)
        if self.shared:
            rows = [row[0].prompt + sum(s.response for s in row) for row in by_prompt(part)]
            return len(rows) * max(rows)
        width = max(s.prompt for s in part) + max(s.response for s in part)
        return len(part) * width


class Pass(NamedTuple):
    """One micro-batch: a forward pass, and a backward pass if its sequences need a gradient.

    chunked: whether logits are computed in chunks. It is set for all ranks if any rank has too many
    logits, so that all ranks exchange the same things in the same order.
    blank: nothing in it counts; it keeps this rank in step with the others.
    """

    sequences: list[TokenSequence]
    needs_gradient: bool
    chunked: bool = False
    blank: bool = False


def passes(
    sequences: list[TokenSequence],
    has_gradient_B: list[bool],
    limits: Limits,
    world: World,
    is_large: Callable[[list[TokenSequence]], bool] = lambda part: False,
) -> list[Pass]:
    """This rank's micro-batches of a mini-batch of B rows.

    Sequences without a gradient come last, in micro-batches without a backward pass. All ranks make
    the same number of each kind in the same order, because they exchange weights and gradients in
    every pass. A rank with fewer repeats its shortest sequence as a blank.
    is_large: whether the logits of a micro-batch are too many to compute at once.
    """
    mine: list[Pass] = []
    longest_first = sorted(sequences, key=lambda sequence: -sequence.length)
    for wanted in (True, False):
        chosen = [s for s in longest_first if any(has_gradient_B[i] for i in s.rows) is wanted]
        rows = sorted(rows_of(chosen, limits), key=lambda row: -limits.computed(row))
        hands = (chain.from_iterable(hand) for hand in deal(rows, world.size))
        plans = [list(micro_batches(list(hand), limits)) for hand in hands]
        blank = longest_first[-1:]
        for parts in zip_longest(*plans):
            chunked = any(is_large(part or blank) for part in parts)
            part = parts[world.rank]
            mine.append(Pass(part or blank, wanted, chunked, blank=part is None))
    return mine


def rows_of(sequences: list[TokenSequence], limits: Limits) -> list[list[TokenSequence]]:
    """The rows of the model input: single sequences, or, with shared prompts, as many sequences of
    one prompt as the limits admit."""
    if not limits.shared:
        return [[sequence] for sequence in sequences]
    groups = ([[sequence] for sequence in same] for same in by_prompt(sequences))
    return [row for singles in groups for row in _filled(singles, limits)]


def deal(rows: list[T], ranks: int) -> list[list[T]]:
    """The rows of each rank. If they are sorted by length, ranks get similar numbers of tokens."""
    return [rows[rank::ranks] for rank in range(ranks)]


def micro_batches(sequences: list[TokenSequence], limits: Limits) -> Iterator[list[TokenSequence]]:
    """Micro-batches of the sequences in order: as many as the limits admit, but at least one row.

    Sorting the sequences by length saves padding.
    """
    return _filled(rows_of(sequences, limits), limits)


def _filled(parts: list[list[TokenSequence]], limits: Limits) -> Iterator[list[TokenSequence]]:
    """As many consecutive parts together as the limits admit, but at least one."""
    whole: list[TokenSequence] = []
    for part in parts:
        if whole and not limits.admit([*whole, *part]):
            yield whole
            whole = []
        whole += part
    if whole:
        yield whole


# How the sequences of a micro-batch are laid out -----------------------------------------------


class Batch(NamedTuple):
    """B sequences as the input of a model, each without its last token, which predicts nothing.
    Responses have at most T tokens each, N together.

    arguments: of the model, by name. keep_N: which of the hidden states that its head reads precede
    the response tokens, counted row by row. live_N: positions of the response tokens in B x T, row
    by row. shape: B and T. padded: the head reads the positions of B x T, so `keep_N` is `live_N`.
    part_GL: with shared prompts, 0 in the prompt, k in its k-th response, -1 in padding.
    """

    arguments: dict[str, Any]
    keep_N: Tensor | slice
    target_N: Tensor
    live_N: Tensor
    shape: tuple[int, int]
    padded: bool = False
    part_GL: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        moved = tree_map_only(Tensor, lambda x: x.to(device), self)
        assert isinstance(moved, Batch)
        return moved

    def inputs(self) -> dict[str, Any]:
        """Arguments of the model. With shared prompts a token attends to the prompt and to earlier
        tokens of its own response; so does padding, or its attention were empty."""
        if self.part_GL is None:
            return self.arguments
        query_GL1, key_G1L = self.part_GL[:, :, None], self.part_GL[:, None]
        mask_GLL = ((key_G1L == 0) | (key_G1L == query_GL1)).tril()
        return {**self.arguments, "attention_mask": mask_GLL[:, None]}

    def live(self, seen: Tensor) -> Tensor:
        """The hidden states that predict the response tokens, N x D."""
        return seen.flatten(0, 1)[self.keep_N]


def collate(rows: Sequences) -> Batch:
    """Prompts padded on the left and responses on the right, which start in the same column."""
    P, T = rows.prompt_BP.shape[1], rows.token_BT.shape[1]
    place_L = torch.arange(P + T)
    first_B1, end_B1 = (P - rows.prompt_length_B)[:, None], (P + rows.length_B)[:, None]
    attended_BL = (place_L >= first_B1) & (place_L < end_B1)
    ids_BL = torch.cat([rows.prompt_BP, rows.token_BT], dim=1)
    mask_BL = attended_BL[:, :-1].long()
    live_N = places(rows.live_BT)
    return Batch(
        {
            "input_ids": ids_BL[:, :-1],
            "attention_mask": mask_BL,
            "position_ids": (mask_BL.cumsum(1) - 1).clamp(min=0),
            "logits_to_keep": T,
        },
        keep_N=live_N,
        target_N=ids_BL[:, -T:].flatten()[live_N],
        live_N=live_N,
        shape=(len(ids_BL), T),
        padded=True,
    )


def packed(rows: Sequences) -> Batch:
    """All sequences in one row. Attention ends where positions restart at 0: transformers separates
    sequences by that, and flash attention skips what lies between them. No prompt and no response
    may be empty."""
    ids_BL, place_T = rows.whole_BL, torch.arange(rows.token_BT.shape[1])
    read_B = rows.prompt_length_B + rows.length_B - 1  # the last token is not read
    place_L = torch.arange(ids_BL.shape[1]).expand_as(ids_BL)
    is_read_BL = place_L < read_B[:, None]
    first_B = read_B.cumsum(0) - read_B + rows.prompt_length_B - 1  # it predicts the first token
    live_BT = rows.live_BT
    return Batch(
        {
            "input_ids": ids_BL[is_read_BL][None],
            "position_ids": place_L[is_read_BL][None],
            "logits_to_keep": (first_B[:, None] + place_T)[live_BT],
        },
        keep_N=slice(None),
        target_N=rows.token_BT[live_BT],
        live_N=places(live_BT),
        shape=(len(live_BT), live_BT.shape[1]),
    )


def shared(rows: Sequences) -> Batch:
    """A row of up to L tokens for each of G distinct prompts: the prompt and its responses, one
    after the other, padded on the right. The positions of a response are as if it directly followed
    the prompt. No prompt and no response may be empty."""
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
    ids_GL, position_GL = torch.zeros(2, G, L, dtype=torch.long)
    part_GL = torch.full((G, L), -1)
    first_G = order_B[number_B == 1]
    is_prompt_GL = torch.arange(L) < rows.prompt_length_B[first_G][:, None]
    width = min(L, rows.prompt_BP.shape[1] + T)
    ids_GL[:, :width] = rows.whole_BL[first_G, :width] * is_prompt_GL[:, :width]
    position_GL[is_prompt_GL] = torch.arange(L).expand(G, L)[is_prompt_GL]
    part_GL[is_prompt_GL] = 0
    is_read_BT = place_T < read_B[:, None]
    at = row_B[:, None].expand(B, T)[is_read_BT], (start_B[:, None] + place_T)[is_read_BT]
    ids_GL[at] = token_BT[is_read_BT]
    position_GL[at] = (prompt_B[:, None] + place_T)[is_read_BT]
    part_GL[at] = number_B[:, None].expand(B, T)[is_read_BT]
    live_BT = place_T < length_B[:, None]
    keep_BT = torch.cat([prompt_B[:, None] - 1, start_B[:, None] + place_T[:-1]], dim=1)
    return Batch(
        {"input_ids": ids_GL, "position_ids": position_GL},
        keep_N=(row_B[:, None] * L + keep_BT)[live_BT],
        target_N=token_BT[live_BT],
        live_N=(order_B[:, None] * T + place_T)[live_BT],
        shape=(B, T),
        part_GL=part_GL,
    )


def places(live_BT: Tensor) -> Tensor:
    """The positions of True in B x T, row by row."""
    return live_BT.flatten().nonzero()[:, 0]


class TreeBatch(NamedTuple):
    """B sequences, each without its last token, as their U distinct prefixes.

    A sequence has at most L tokens and a response at most T; the responses have N tokens together.
    A place is a position in B x L, read row by row. Several places may share a prefix: the first
    one stands for it, the others are repeats.
    """

    input_ids: Tensor  # U, the last token of each prefix
    position_ids: Tensor  # U
    place_BL: Tensor  # the prefix at each place; any prefix at padding
    first_U: Tensor  # the first place of each prefix
    again_X: Tensor  # the places of repeats,
    again_place_X: Tensor  # and the prefix at each
    keep_N: Tensor  # the prefix before each response token
    target_N: Tensor
    live_N: Tensor  # positions of the response tokens in B x T, read row by row
    shape: tuple[int, int]  # B and T

    @classmethod
    def of(cls, rows: Sequences) -> "TreeBatch":
        """No prompt and no response may be empty."""
        live_BT = rows.live_BT
        prompt_B, length_B = rows.prompt_length_B.numpy(), rows.length_B.numpy()
        read_B = prompt_B + length_B - 1  # the last token is not read
        B, L = len(read_B), int(read_B.max())
        exists_BL = np.arange(L) < read_B[:, None]
        ids_BL = np.where(exists_BL, rows.whole_BL.numpy()[:, :L], -1)
        order_B = np.lexsort(ids_BL.T[::-1])  # rows that begin alike are neighbours
        ids_BL, exists_BL = ids_BL[order_B], exists_BL[order_B]
        as_before_BL = np.zeros((B, L), dtype=bool)
        as_before_BL[1:] = np.logical_and.accumulate(ids_BL[1:] == ids_BL[:-1], axis=1)
        new_BL = exists_BL & ~as_before_BL
        number_BL = np.where(new_BL, new_BL.cumsum().reshape(B, L) - 1, 0)
        place_BL = np.empty_like(number_BL)
        place_BL[order_B] = np.maximum.accumulate(number_BL, axis=0)
        flat_BL = order_B[:, None] * L + np.arange(L)
        again_X = flat_BL[exists_BL & as_before_BL]
        place_L = np.arange(L)
        before_BL = (place_L >= prompt_B[:, None] - 1) & (place_L < read_B[:, None])
        return cls(
            torch.from_numpy(ids_BL[new_BL]),
            torch.from_numpy(np.nonzero(new_BL)[1]),
            torch.from_numpy(place_BL),
            torch.from_numpy(flat_BL[new_BL]),
            torch.from_numpy(again_X),
            torch.from_numpy(place_BL.ravel()[again_X]),
            torch.from_numpy(place_BL[before_BL]),
            rows.token_BT[live_BT],
            places(live_BT),
            (B, live_BT.shape[1]),
        )
