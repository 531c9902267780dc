"""The distinct prefixes of the responses in flight, and their key/value cache.

Each prefix has a place, a row of every tensor here. Most prefixes keep their place: only those that
branch, and those behind the last place in use, are copied.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import Cache
from transformers.cache_utils import DynamicLayer

# Added to the attention scores of padding, whose weight is then 0.
HIDDEN = -math.inf
# Attention reads a multiple of SPAN positions, and at least LEAST_SPAN: torch's kernel for the
# smallest matrix products is slow. Positions not in use yet are hidden, and are zero.
SPAN, LEAST_SPAN = 8, 32
# The most bytes of keys and values that a sampler keeps between calls, since training needs the
# memory of large models.
KEPT = 2**27


class Memory:
    """Flat memory for keys and values, by layer and kind, reused between calls: new pages cost more
    than writing to them. It may hold old numbers; `BufferLayer` overwrites what is read."""

    def __init__(self) -> None:
        self.flat: dict[tuple[int, int], Tensor] = {}

    def begin(
        self, name: tuple[int, int], shape: tuple[int, ...], most: int, like: Tensor
    ) -> Tensor:
        """A tensor of this shape for a new cache. most: the most rows that it may grow to; on the
        CPU they are reserved, up to KEPT bytes, and the system provides pages as they are written.
        """
        size, old = math.prod(shape), self.flat.get(name)
        kind = (like.dtype, like.device)
        if old is None or len(old) < size or (old.dtype, old.device) != kind:
            del old
            self.flat.pop(name, None)  # before allocating more
            ahead = min(most * math.prod(shape[1:]), KEPT // like.itemsize)
            self.flat[name] = _zeros(max(size, ahead if like.device.type == "cpu" else 0), like)
        return self.flat[name][:size].view(shape)

    def more(self, name: tuple[int, int], shape: tuple[int, ...]) -> Tensor:
        """A tensor of this shape that begins with the rows there were before."""
        flat, size = self.flat[name], math.prod(shape)
        if len(flat) < size:
            self.flat[name] = _zeros(size, flat)
            self.flat[name][: len(flat)] = flat
        return self.flat[name][:size].view(shape)

    def release(self) -> None:
        """End a call: keep the memory if it is on the CPU and at most KEPT bytes, else free it."""
        flats = self.flat.values()
        if sum(x.nbytes for x in flats) > KEPT or any(x.device.type != "cpu" for x in flats):
            self.flat.clear()


def _zeros(size: int, like: Tensor) -> Tensor:
    """On the CPU by numpy, whose zeros are not written until they are needed."""
    if like.device.type != "cpu":
        return like.new_zeros(size)
    return torch.from_numpy(np.zeros(size * like.itemsize, np.uint8)).view(like.dtype)


def span_of(length: int) -> int:
    """Positions that attention reads if `length` are in use."""
    return max(LEAST_SPAN, -(-length // SPAN) * SPAN)


class BufferLayer(DynamicLayer):
    """A layer of key/value cache in preallocated memory: it never concatenates.

    Behind the positions in use, up to `span_of` them, it is zero."""

    def __init__(
        self, prompt: DynamicLayer, extra: int, memory: Memory, number: int, most: int
    ) -> None:
        """The cache of the prompts with room for `extra` more tokens. most: the most prefixes."""
        super().__init__()
        self.dtype, self.device = prompt.keys.dtype, prompt.keys.device
        self.is_initialized = True
        self.count, self.length = len(prompt.keys), prompt.get_seq_length()
        self.memory, self.names = memory, ((number, 0), (number, 1))
        prompts = (prompt.keys, prompt.values)
        self.buffers = []
        for name, x_UJPE in zip(self.names, prompts, strict=True):
            U, J, P, E = x_UJPE.shape
            buffer_UJLE = memory.begin(name, (U, J, P + extra, E), most, x_UJPE)
            buffer_UJLE[:, :, :P] = x_UJPE
            buffer_UJLE[:, :, P : span_of(P)] = 0
            self.buffers.append(buffer_UJLE)
        self._view()

    def _view(self) -> None:
        self.keys, self.values = (x_XJLE[: self.count, :, : self.length] for x_XJLE in self.buffers)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        self.write(key_states, value_states)
        self._view()
        return self.keys, self.values

    def write(self, key_UJTE: Tensor, value_UJTE: Tensor) -> None:
        """Append T tokens to each prefix, for code that reads the buffers."""
        start, self.length = self.length, self.length + key_UJTE.shape[2]
        before, span = span_of(start), span_of(self.length)
        for x_XJLE, new_UJTE in zip(self.buffers, (key_UJTE, value_UJTE), strict=True):
            if before < span:
                x_XJLE[: self.count, :, before:span] = 0
            x_XJLE[: self.count, :, start : self.length] = new_UJTE

    def move(self, source_X: Tensor, target_X: Tensor, count: int, places: int) -> None:
        """Copy prefixes to other places. Afterwards there are `count`, with room for `places`."""
        self.buffers = [
            self.memory.more(name, (places, *x_XJLE.shape[1:]))
            for name, x_XJLE in zip(self.names, self.buffers, strict=True)
        ]
        for x_XJLE in self.buffers:
            _copy(x_XJLE[:, :, : span_of(self.length)], source_X, target_X)
        self.count = count
        self._view()


@dataclass(slots=True)
class Prefixes:
    """`count` prefixes in the first of X places. L: positions of the cache, used or not."""

    cache: Cache
    bias_XL: Tensor  # 0 at tokens, HIDDEN at padding and unused positions
    position_X: Tensor  # of the next token
    count: int
    length: int  # cache positions in use, the same for every prefix
    most: int  # the most prefixes that there may be

    @classmethod
    def after(
        cls, cache: Cache, mask_UP: Tensor, extra: int, memory: Memory, most: int
    ) -> "Prefixes":
        """The prompts as prefixes, with room for `extra` more tokens each, in this memory."""
        for i, layer in enumerate(cache.layers):
            if type(layer) is DynamicLayer:  # not a sliding window and the like
                cache.layers[i] = BufferLayer(layer, extra, memory, i, most)
        count, length = mask_UP.shape
        bias_XL = torch.full((count, length + extra), HIDDEN, device=mask_UP.device)
        bias_XL[:, :length].masked_fill_(mask_UP.bool(), 0)
        return cls(cache, bias_XL, mask_UP.sum(1), count, length, most)

    @property
    def position_U(self) -> Tensor:
        return self.position_X[: self.count]

    @property
    def mask_UL(self) -> Tensor:
        """1 at tokens and 0 at padding, over the positions in use."""
        return (self.bias_XL[: self.count, : self.length] == 0).long()

    @property
    def bias_UL(self) -> Tensor:
        """Added to attention scores over the first `span_of` the positions in use."""
        return self.bias_XL[: self.count, : span_of(self.length)]

    def append(self) -> None:
        """Begin one more position of each prefix."""
        self.bias_XL[: self.count, self.length] = 0
        self.length += 1

    def branch(self, parent_M: Tensor) -> Tensor:
        """Continue with these prefixes, in ascending order and possibly repeated; drop all others.

        Returns the place of each, a permutation of the first M places.
        """
        count = len(parent_M)
        first_M = functional.pad(parent_M.diff() > 0, (1, 0), value=True)
        stays_M = first_M & (parent_M < count)
        mover_X = (~stays_M).nonzero()[:, 0]
        # No free place is the source of a move: a prefix that continues either keeps its place or
        # is behind the last place.
        free_M = torch.ones_like(stays_M)
        free_M[parent_M[stays_M]] = False
        source_X, target_X = parent_M[mover_X], free_M.nonzero()[:, 0]
        place_M = parent_M.index_copy(0, mover_X, target_X)
        if len(mover_X) or count < self.count:
            self._move(source_X, target_X, count)
        return place_M

    def _move(self, source_X: Tensor, target_X: Tensor, count: int) -> None:
        places = len(self.position_X)
        if count > places:  # doubling keeps the number of copies small
            places = max(count, min(2 * places, self.most))
        for layer in self.cache.layers:
            if isinstance(layer, BufferLayer):
                layer.move(source_X, target_X, count, places)
            else:
                order_M = torch.arange(count, device=source_X.device)
                layer.reorder_cache(order_M.index_copy(0, target_X, source_X))
        self.bias_XL = _with_room(self.bias_XL, places)
        self.position_X = _with_room(self.position_X, places)
        _copy(self.bias_XL, source_X, target_X)
        _copy(self.position_X, source_X, target_X)
        self.count = count


def _with_room(rows: Tensor, places: int) -> Tensor:
    """The rows, padded with zeros to `places`."""
    missing = places - len(rows)
    if not missing:
        return rows
    return functional.pad(rows, (*[0] * (2 * rows.ndim - 1), missing))


def _copy(rows: Tensor, source_X: Tensor, target_X: Tensor) -> None:
    rows.index_copy_(0, target_X, rows.index_select(0, source_X))
