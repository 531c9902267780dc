"""Which problems a draw has, and which groups of which draws make up a training batch.

A draw is a set of rollouts from one policy version; draw d comes from the version that the schedule
names for batch d. Draws, batches and groups count from 0. A batch's composition is a pure function,
so overlapped and resumed runs use the same groups.
"""

from functools import lru_cache
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from rec_experiments.common import rng
from rec_experiments.common.pieces import Piece


class Portion(NamedTuple):
    """Groups of one draw, in order."""

    draw: int
    groups: list[int]


@runtime_checkable
class ReplayBuffer(Protocol):
    """window: number of batches for which a draw may be reused. redraws: how often a group of equal
    rewards is replaced by one of another prompt, at most."""

    @property
    def window(self) -> int: ...

    @property
    def redraws(self) -> int: ...

    def fresh(self, batch_size: int) -> int:
        """Prompts of each draw, for batches of `batch_size` groups. Raises ValueError if there are
        none."""

    def portions(self, batch: int, batch_size: int, seed: int) -> list[Portion]:
        """The groups of a batch: of its own draw, and of the `window` draws before it."""

    def describe(self) -> str:
        """A one-line description; empty if all rollouts are fresh."""


class NoReplay(Piece):
    """Each batch is one fresh draw."""

    window: ClassVar[int] = 0
    redraws: NonNegativeInt

    def fresh(self, batch_size: int) -> int:
        return batch_size

    def portions(self, batch: int, batch_size: int, seed: int) -> list[Portion]:
        return [Portion(batch, list(range(batch_size)))]

    def describe(self) -> str:
        return _redrawn(self.redraws)


class Replay(Piece):
    """`reuse` groups of each batch come from earlier draws, the others from a fresh draw.

    They are sampled uniformly, without repetition, from the groups of the last `window` draws. The
    first batches are smaller, because there are not enough earlier groups.
    """

    redraws: NonNegativeInt
    reuse: PositiveInt
    window: PositiveInt

    def fresh(self, batch_size: int) -> int:
        if self.reuse >= batch_size:
            raise ValueError(f"buffer.reuse={self.reuse}: must be below batch_size={batch_size}")
        return batch_size - self.reuse

    def portions(self, batch: int, batch_size: int, seed: int) -> list[Portion]:
        each = self.fresh(batch_size)
        draws = range(max(0, batch - self.window), batch)
        there = len(draws) * each
        named = rng.generator(seed, rng.REPLAY, batch)
        chosen = sorted(named.choice(there, min(self.reuse, there), replace=False).tolist())
        old = [Portion(d, [n % each for n in chosen if draws[n // each] == d]) for d in draws]
        return [Portion(batch, list(range(each))), *(part for part in old if part.groups)]

    def describe(self) -> str:
        again = f"{self.reuse} groups of each batch from the last {self.window} draws"
        return ", ".join(filter(None, [again, _redrawn(self.redraws)]))


def _redrawn(redraws: int) -> str:
    if not redraws:
        return ""
    return f"groups of equal rewards are replaced, at most {redraws} times"


def problems_of(batch: int, size: int, total: int, seed: int, shuffle: bool) -> list[int]:
    """The numbers of the `size` problems of a batch.

    Each epoch contains every problem once, shuffled anew or in file order; a batch may span epochs.
    """
    positions = range(batch * size, (batch + 1) * size)
    return [int(_order(seed, p // total, total, shuffle)[p % total]) for p in positions]


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, total: int, shuffle: bool) -> np.ndarray:
    if not shuffle:
        return np.arange(total)
    return rng.generator(seed, rng.ORDER, epoch).permutation(total)
