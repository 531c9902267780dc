"""The sequences of a micro-batch as a tree of prefixes."""

from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rec_experiments.policy.token_batch import response_places


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
    def of(cls, prompts: list[list[int]], responses: list[list[int]]) -> "TreeBatch":
        """No prompt and no response may be empty."""
        T = max(len(response) for response in responses)
        rows = [(p + r)[:-1] for p, r in zip(prompts, responses, strict=True)]
        length_B = np.array([len(row) for row in rows])
        B, L = len(rows), int(length_B.max())
        order_B = sorted(range(B), key=rows.__getitem__)  # rows that begin alike are neighbours
        ids_BL = np.full((B, L), -1)
        ids_BL[np.arange(L) < length_B[order_B, None]] = list(
            chain.from_iterable(rows[b] for b in order_B)
        )
        exists_BL = ids_BL >= 0
        as_before_BL = np.zeros((B, L), dtype=bool)
        as_before_BL[1:] = np.logical_and.accumulate(ids_BL[1:] == ids_BL[:-1], axis=1)
        new_BL = exists_BL & ~as_before_BL
        number_BL = np.where(new_BL, new_BL.cumsum().reshape(B, L) - 1, 0)
        place_BL = np.empty_like(number_BL)
        place_BL[order_B] = np.maximum.accumulate(number_BL, axis=0)
        flat_BL = np.array(order_B)[:, None] * L + np.arange(L)
        again_X = flat_BL[exists_BL & as_before_BL]
        before_BL = np.arange(L) >= np.array([[len(prompt) - 1] for prompt in prompts])
        before_BL &= np.arange(L) < length_B[:, None]
        return cls(
            torch.from_numpy(ids_BL[new_BL]),
            torch.from_numpy(np.nonzero(new_BL)[1]),
            torch.from_numpy(place_BL),
            torch.from_numpy(flat_BL[new_BL]),
            torch.from_numpy(again_X),
            torch.from_numpy(place_BL.ravel()[again_X]),
            torch.from_numpy(place_BL[before_BL]),
            torch.from_numpy(
                np.array([*chain.from_iterable(responses)])
            ),  # torch reads a list slowly
            response_places(responses, T),
            (B, T),
        )
