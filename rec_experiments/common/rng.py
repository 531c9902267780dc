"""Counter-based randomness: a number is a function of its name, never of what was drawn before.

So a resumed, an overlapped and a re-batched run draw the same numbers as a plain one. The bits that
are computed from them also depend on the device (docs/operations.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rec_experiments.common.batch import SampleKey

if TYPE_CHECKING:
    import numpy as np

# One stream per purpose, so that no two purposes share numbers.
(
    TRAIN, EVAL, ORDER, DROP, TASK, MODEL, PARTS, REWARD, REDRAW, REPLAY, MEASURE, CLIP, MISMATCH,
    LOGITS,
) = range(14)  # fmt: skip


def generator(seed: int, stream: int, *counter: int) -> np.random.Generator:
    """The generator named (seed, stream, counter of up to 3 integers).

    Philox is keyed by (seed, stream); its counter's lowest word counts the numbers drawn, the
    other three hold `counter`, so generators of different names never overlap.
    """
    import numpy as np

    words = np.array([0, *counter, *[0] * (3 - len(counter))], dtype=np.uint64)
    key = np.array((seed, stream), dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=words))


def uniforms(keys: Sequence[SampleKey], n: int) -> np.ndarray:
    """The first n uniforms in [0, 1) of each of B turns of responses, n x B: one for each token."""
    import numpy as np

    bits = np.random.Philox(0)
    numbers, state = np.random.Generator(bits), bits.state
    uniform_BX = np.empty((len(keys), n))
    for key, row in zip(keys, uniform_BX, strict=True):
        # The state of a new generator of that name, which takes longer to make.
        state["state"] = {
            "key": np.array((key.seed, key.stream), np.uint64),
            "counter": np.array((0, *_of_turn(key)), np.uint64),
        }
        bits.state = state
        numbers.random(out=row)
    return np.ascontiguousarray(uniform_BX.T)


def integer(key: SampleKey) -> int:
    """The seed of one turn of a response, below 2^63, for a library that draws by itself."""
    return int(generator(key.seed, key.stream, *_of_turn(key)).integers(1 << 63))


def _of_turn(key: SampleKey) -> tuple[int, int, int]:
    """The counter of a turn. Response and turn share a word of it, so do group and attempt, 32 bits
    each."""
    return key.response | key.turn << 32, key.group | key.attempt << 32, key.batch
