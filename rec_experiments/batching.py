"""How a mini-batch is cut: which sequences each rank takes, and which it computes in one pass.

Only memory, speed and rounding depend on it. A sequence is a prompt with its response.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rec_experiments.distributed import World

Lengths = list[tuple[int, int]]  # of each sequence: tokens of its prompt, tokens of its response


def distinct(prompts: list[list[int]], responses: list[list[int]]) -> list[list[int]]:
    """The rows of each sequence that occurs, so that it need be computed only once.

    A tiny policy says the same thing to the same prompt most of the time.
    """
    rows = defaultdict(list)
    for i, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        rows[tuple(prompt), tuple(response)].append(i)
    return list(rows.values())


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one pass: most rows, and most tokens with padding. None for no limit."""

    rows: int | None
    tokens: int | None

    def admit(self, rows: int, width: int) -> bool:
        """Whether `rows` rows, padded to `width` tokens, fit into one pass."""
        return (self.rows is None or rows <= self.rows) and (
            self.tokens is None or rows * width <= self.tokens
        )


class Pass(NamedTuple):
    """One forward pass over some rows, with a backward pass if they need a gradient.

    blank: nothing in it counts, it only keeps step with the other ranks.
    """

    rows: list[int]
    needs_gradient: bool
    blank: bool = False


def passes(lengths: Lengths, has_gradient: list[bool], limits: Limits, world: World) -> list[Pass]:
    """This rank's passes over the sequences of a mini-batch.

    Those without a gradient are apart: they are only measured, which costs a third. All ranks make
    the same number of each kind, in the same order: in every pass they exchange weights and
    gradients. A rank that has fewer repeats the shortest, blank.
    """
    mine: list[Pass] = []
    for wanted in (True, False):
        rows = [i for i, has in enumerate(has_gradient) if has is wanted]
        rows.sort(key=lambda i: (-sum(lengths[i]), i))
        plans = [list(micro_batches(hand, lengths, limits)) for hand in deal(rows, world.size)]
        mine += [Pass(part, wanted) for part in plans[world.rank]]
        missing = max(map(len, plans)) - len(plans[world.rank])
        mine += [Pass([_shortest(lengths)], wanted, blank=True)] * missing
    return mine


def deal(rows: list[int], ranks: int) -> list[list[int]]:
    """The rows of each rank. Of rows sorted by length, ranks get like numbers of tokens."""
    return [rows[rank::ranks] for rank in range(ranks)]


def micro_batches(rows: list[int], lengths: Lengths, limits: Limits) -> Iterator[list[int]]:
    """The rows in order, as many together as the limits admit, but at least one.

    Sorted rows save padding.
    """
    part: list[int] = []
    prompt = response = 0  # the longest in `part`
    for row in rows:
        longest = max(prompt, lengths[row][0]), max(response, lengths[row][1])
        if part and not limits.admit(len(part) + 1, sum(longest)):
            yield part
            part, longest = [], lengths[row]
        part.append(row)
        prompt, response = longest
    if part:
        yield part


def _shortest(lengths: Lengths) -> int:
    return min(range(len(lengths)), key=lambda i: sum(lengths[i]))
