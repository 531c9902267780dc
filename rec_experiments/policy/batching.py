"""How a mini-batch is split over ranks and into micro-batches.

The split changes memory, speed and rounding, and nothing else.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

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
    rows: list[list[TokenSequence]] = []
    for same in by_prompt(sequences):
        row: list[TokenSequence] = []
        for sequence in same:
            if not row or not limits.admit([*row, sequence]):
                rows.append(row := [])
            row.append(sequence)
    return rows


def deal(rows: list[T], ranks: int) -> list[list[T]]:
    """The rows of each rank. If they are sorted by length, ranks get similar numbers of tokens."""
    return [rows[rank::ranks] for rank in range(ranks)]


def micro_batches(sequences: list[TokenSequence], limits: Limits) -> Iterator[list[TokenSequence]]:
    """Micro-batches of the sequences in order: as many as the limits admit, but at least one row.

    Sorting the sequences by length saves padding.
    """
    part: list[TokenSequence] = []
    for row in rows_of(sequences, limits):
        if part and not limits.admit([*part, *row]):
            yield part
            part = []
        part += row
    if part:
        yield part
