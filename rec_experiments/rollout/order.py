"""The problems of each batch: a pure function of seed and batch number."""

from functools import lru_cache

import numpy as np

from rec_experiments.common import rng


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
