"""Counter-based randomness: a number is a function of its name, never of what was drawn before.

So a resumed, an overlapped and a re-batched run draw the same numbers as a plain one. The bits that
are computed from them also depend on the device (docs/operations.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rec_experiments.types import SampleKey

if TYPE_CHECKING:
    import numpy as np

# One stream per purpose, so that no two purposes share numbers.
TRAIN, EVAL, ORDER, DROP, TASK, MODEL, PARTS, REWARD, REDRAW, REPLAY, MEASURE = range(11)


def generator(seed: int, stream: int, *counter: int) -> np.random.Generator:
    """The generator named (seed, stream, counter of up to 3 integers).

    Philox is keyed by (seed, stream); its counter's lowest word counts the numbers drawn, the
    other three hold `counter`, so generators of different names never overlap.
    """
    import numpy as np

    words = np.array([0, *counter, *[0] * (3 - len(counter))], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=[seed, stream], counter=words))


def uniforms(key: SampleKey, n: int) -> np.ndarray:
    """The first n uniforms in [0, 1) of one turn of a response: one for each of its tokens."""
    return _of_turn(key).random(n)


def integer(key: SampleKey) -> int:
    """The seed of one turn of a response, below 2^63, for a library that draws by itself."""
    return int(_of_turn(key).integers(1 << 63))


def _of_turn(key: SampleKey) -> np.random.Generator:
    """Response and turn share a word of the counter, so do group and attempt, 32 bits each."""
    response, group = key.response | key.turn << 32, key.group | key.attempt << 32
    return generator(key.seed, key.stream, response, group, key.batch)
