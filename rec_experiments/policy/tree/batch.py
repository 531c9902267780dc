"""The sequences of a micro-batch as a tree of prefixes."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rec_experiments.common.batch import Sequences
from rec_experiments.policy.token_batch import places


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
