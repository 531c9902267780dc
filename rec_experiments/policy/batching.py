"""How a mini-batch is cut: which sequences each rank takes, and which it computes in one pass.

Only memory, speed and rounding depend on it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import NamedTuple, TypeVar

from rec_experiments.distributed import World

T = TypeVar("T")


class TokenSequence(NamedTuple):
    """A prompt with its response, computed once, and the rows of the mini-batch that are it."""

    prompt: list[int]
    response: list[int]
    rows: list[int]

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.response)


def distinct(prompts: list[list[int]], responses: list[list[int]]) -> list[TokenSequence]:
    """The sequences of a mini-batch, in order of their first rows.

    A tiny policy says the same thing to the same prompt most of the time.
    """
    rows = defaultdict(list)
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        rows[tuple(prompt), tuple(response)].append(i)
    return [TokenSequence(prompts[same[0]], responses[same[0]], same) for same in rows.values()]


def by_prompt(sequences: Sequence[TokenSequence]) -> list[list[TokenSequence]]:
    """The sequences of each prompt, in order of their first ones."""
    found = defaultdict(list)
    for sequence in sequences:
        found[tuple(sequence.prompt)].append(sequence)
    return list(found.values())


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one pass: most sequences, and most tokens, with padding unless they are packed. None for
    no limit. shared: a prompt is computed once for all of its responses in the pass, which stand
    behind it in one row."""

    sequences: int | None
    tokens: int | None
    packed: bool = False
    shared: bool = False

    def admit(self, part: list[TokenSequence]) -> bool:
        """Whether these sequences fit into one pass."""
        return (self.sequences is None or len(part) <= self.sequences) and (
            self.tokens is None or self.computed(part) <= self.tokens
        )

    def computed(self, part: list[TokenSequence]) -> int:
        """Tokens of one pass, padding included."""
        if self.packed:
            return sum(sequence.length for sequence in part)
        if self.shared:
            rows = [
                len(row[0].prompt) + sum(len(s.response) for s in row) for row in by_prompt(part)
            ]
            return len(rows) * max(rows)
        width = max(len(s.prompt) for s in part) + max(len(s.response) for s in part)
        return len(part) * width


class Pass(NamedTuple):
    """One forward pass over some sequences, with a backward pass if they need a gradient.

    chunked: whether any rank's share of it has too many logits to be made at once; all ranks then
    take the same way through the model, and exchange the same things in the same order.
    blank: nothing in it counts, it only keeps step with the other ranks.
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
    """This rank's passes over the sequences of a mini-batch of B rows.

    Those without a gradient are apart: they are only measured, which costs a third. All ranks make
    the same number of each kind, in the same order: in every pass they exchange weights and
    gradients. A rank that has fewer repeats the shortest, blank.
    is_large: whether the logits of a pass are too many to be made at once.
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
    """What stands in one row: a sequence alone, or, where they share it, as many of a prompt as the
    limits admit."""
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
    """The rows of each rank. Sorted by length, ranks get like numbers of tokens."""
    return [rows[rank::ranks] for rank in range(ranks)]


def micro_batches(sequences: list[TokenSequence], limits: Limits) -> Iterator[list[TokenSequence]]:
    """The sequences in order, as many together as the limits admit, but at least one.

    Sorted sequences save padding.
    """
    part: list[TokenSequence] = []
    for row in rows_of(sequences, limits):
        if part and not limits.admit([*part, *row]):
            yield part
            part = []
        part += row
    if part:
        yield part
