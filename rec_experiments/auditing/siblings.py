"""Pairs of responses to one prompt, at the token where they part: one context, two tokens.

There log π(a) − log π(b) is a difference of two logits, whatever the normalisation of softmax. So
log-probabilities of two computations of one policy have equal differences; at another temperature T
they are 1/T times as large; and logits of bfloat16 give multiples of its unit.
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rec_experiments.auditing.batch import Batch, Missing

GRID = 2.0**10  # bfloat16 has units of at least 1/GRID for logits of 1/8 and larger
NEAR = 0.02  # of the grid's unit; a float32 log-probability is this near by chance in 4 %
ON_GRID = 0.9  # the share of differences near the grid
FLOAT32_ROUNDING = 2e-3  # of 90 % of log-probabilities; 1e-6 on CPUs, up to this with TF32
BFLOAT16_ROUNDING = 0.2
ENOUGH = 6  # differences: 6 of 6 are near the grid by chance with probability 4e-9


class Siblings(NamedTuple):
    """X pairs: rows first_X and second_X agree before token place_X, and differ there."""

    first_X: Tensor
    second_X: Tensor
    place_X: Tensor

    def __len__(self) -> int:
        return len(self.first_X)

    def difference(self, logp_BT: Tensor) -> Tensor:
        """Of the two log-probabilities where the rows part, X."""
        return logp_BT[self.first_X, self.place_X] - logp_BT[self.second_X, self.place_X]


def siblings(batch: Batch) -> Siblings:
    """Neighbours among the sorted responses of each group, each pair drawn by one version. Raises
    Missing."""
    tokens_BT, _ = batch.need("tokens", "groups")
    tokens, live = tokens_BT.numpy(), batch.mask_BT.numpy()
    coded = np.where(live, tokens, -1 - tokens)  # tokens outside the mask are no choice
    found = []
    for members in batch.members():
        rows = members.numpy()
        ordered = rows[np.lexsort(coded[rows].T[::-1])]
        for first, second in pairwise(ordered):
            parted = np.flatnonzero(coded[first] != coded[second])
            if len(parted) and live[first, parted[0]] and live[second, parted[0]]:
                found.append((int(first), int(second), int(parted[0])))
    if batch.prompts is not None:
        found = [each for each in found if batch.prompts[each[0]] == batch.prompts[each[1]]]
    if batch.versions_BT is not None:
        versions_BT = batch.versions_BT
        found = [x for x in found if versions_BT[x[0], x[2]] == versions_BT[x[1], x[2]]]
    return Siblings(*torch.tensor(found, dtype=torch.long).reshape(-1, 3).unbind(1))


def precision(batch: Batch, role: str) -> str:
    """The dtype in which a role's logits were computed, as far as the values tell.

    `stored bfloat16` if log-probabilities are bfloat16 themselves, `noisy` if values of one context
    differ between rows by more than rounding of float32. Raises Missing.
    """
    logp_BT = batch.logps[role]
    live_N = logp_BT[batch.mask_BT]
    if len(live_N) >= ENOUGH and bool((live_N == live_N.bfloat16().double()).all()):
        return "stored bfloat16" if bool((live_N != 0).any()) else "float32"
    pairs = siblings(batch)
    difference_X = pairs.difference(logp_BT)
    difference_X = difference_X[difference_X.abs() > 1 / GRID]
    if len(difference_X) < ENOUGH:
        raise Missing("tokens of more responses for each prompt")
    steps_X = difference_X * GRID
    near = float(((steps_X - steps_X.round()).abs() < NEAR).double().mean())
    if near >= ON_GRID:
        return "bfloat16"
    return "noisy" if _noise(batch, pairs, logp_BT) > FLOAT32_ROUNDING else "float32"


def _noise(batch: Batch, pairs: Siblings, logp_BT: Tensor) -> float:
    """The 90 % quantile of the difference between two rows at tokens that both share."""
    shared_XT = torch.arange(logp_BT.shape[1]) < pairs.place_X[:, None]
    shared_XT &= batch.mask_BT[pairs.first_X]
    gap_N = (logp_BT[pairs.first_X] - logp_BT[pairs.second_X])[shared_XT].abs()
    return float(gap_N.quantile(0.9)) if len(gap_N) else 0.0


def rounding(batch: Batch, *roles: str) -> float:
    """How far log-probabilities of the same weights may be apart in these roles: 90 % of tokens.
    Where tokens and groups do not tell, as far as in bfloat16."""
    try:
        found = {precision(batch, role) for role in roles} if batch.dtype is None else {batch.dtype}
    except Missing:
        return BFLOAT16_ROUNDING
    return FLOAT32_ROUNDING if found == {"float32"} else BFLOAT16_ROUNDING
