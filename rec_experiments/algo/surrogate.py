"""The one loss through which every algorithm runs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

from rec_experiments.algo.advantages import Advantage
from rec_experiments.algo.aggregation import Aggregation
from rec_experiments.algo.clips import Clip
from rec_experiments.algo.corrections import Correction
from rec_experiments.algo.data_weighting import DataWeighting
from rec_experiments.algo.groups import group_sum
from rec_experiments.algo.ratios import Ratio
from rec_experiments.algo.regularizers import NoRegularizer, Regularizer
from rec_experiments.algo.truncation import Truncation
from rec_experiments.algo.weights import Weight
from rec_experiments.types import (
    Advantages,
    LossInput,
    LossOutput,
    Needs,
    Outcomes,
    StepIndex,
    Totals,
)

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """A row of choices: g = Σ keep · weight · advantage · ∇ log π_θ − ∇ regulariser, aggregated."""

    truncation: Truncation
    advantage: Advantage
    data_weighting: DataWeighting
    ratio: Ratio
    clip: Clip
    weight: Weight
    correction: Correction
    regularizer: Regularizer
    aggregation: Aggregation

    @property
    def needs(self) -> Needs:
        """Of all pieces together."""
        return functools.reduce(operator.or_, (getattr(self, f.name).needs for f in fields(self)))

    @property
    def needs_reference(self) -> bool:
        """Whether the loss itself reads the reference policy."""
        return "reference" in self.needs.logps or "kl" in self.needs.dense

    def advantages(self, outcomes: Outcomes, rng: np.random.Generator) -> Advantages:
        """Advantages and denominators of a whole mini-batch, before it is cut.

        A response that could not be judged is in no baseline, no loss and no denominator. rng: the
        randomness of what drops samples. Raises ValueError for another number of advantages than
        rewards.
        """
        rewards_B, counts_B = self.truncation(outcomes.rewards_B, outcomes.finished_B)
        judged_B, groups_B = outcomes.judged_B, outcomes.groups_B
        rewards_J = rewards_B[judged_B]
        weighted = self.data_weighting(self.advantage, rewards_J, groups_B[judged_B], rng)
        advantage_B = rewards_B.new_zeros(rewards_B.shape)
        advantage_B[judged_B] = _like(
            rewards_J, weighted.advantage_B, self.advantage, self.data_weighting
        )
        mask_BT, counted_BT = (
            outcomes.mask_BT & counts_B[:, None] & _rows_again(rows, judged_B)[:, None]
            for rows in (weighted.live_B, weighted.counted_B)
        )
        counted_B = counted_BT.any(1)
        totals = Totals(tokens=int(counted_BT.sum()), groups=len(groups_B[counted_B].unique()))
        return Advantages(advantage_B, mask_BT, group_sum(counted_B.long(), groups_B), totals)

    def loss(self, batch: LossInput) -> LossOutput:
        """These rows' share of the loss, with log-ratios and kept tokens for metrics.

        Raises ValueError for a piece whose result is not B x T (it would be spread over rows or
        tokens that it does not belong to), for a weight or correction with a gradient of its own,
        and for a piece that changes what others read.
        """
        mask_BT = batch.mask_BT
        log_ratio_BT = _like(mask_BT, _asked(self.ratio, batch), self.ratio)
        keep_BT = _like(mask_BT, _asked(self.clip, log_ratio_BT, batch), self.clip) & mask_BT
        weight_BT = _like(mask_BT, _asked(self.weight, log_ratio_BT, batch), self.weight)
        weight_BT = _constant(weight_BT, self.weight)
        correction_BT = _asked(self.correction, batch)
        if correction_BT is not None:
            correction_BT = _like(mask_BT, correction_BT, self.correction)
            weight_BT = weight_BT * _constant(correction_BT, self.correction)
        surrogate_BT = -(weight_BT * batch.advantage_B[:, None]) * batch.logp_BT
        loss_BT = surrogate_BT.where(keep_BT, 0.0)
        extra_BT = _asked(self.regularizer, batch)
        if extra_BT is not None:
            loss_BT = loss_BT + _like(mask_BT, extra_BT, self.regularizer)
        return LossOutput(
            self.aggregation(loss_BT, batch.advantages),
            batch.log_ratio_BT(),
            log_ratio_BT,
            keep_BT,
        )

    def has_gradient(self, advantages: Advantages) -> Tensor:
        """Boolean B: sequences that can move the policy. The others need no backward pass."""
        live_B = advantages.mask_BT.any(1)
        if isinstance(self.regularizer, NoRegularizer):
            return (advantages.advantage_B != 0) & live_B
        return live_B

    def describe(self) -> list[str]:
        """The formula in words: coefficient, mask, extra loss, normalisation."""
        coefficient = self.data_weighting.describe(self.advantage.describe())
        factors = self.weight.describe(self.ratio.describe()) + self.correction.describe()
        lines = [
            f"gradient: Σ M{factors} · ∇log π_θ · {coefficient}",
            f"mask M: {self.clip.describe(self.ratio.describe())}",
        ]
        if self.regularizer.describe():
            lines.append(f"extra loss: {self.regularizer.describe()}")
        if self.truncation.describe():
            lines.append(f"truncation: {self.truncation.describe()}")
        return [*lines, f"normalised: {self.aggregation.describe()}"]


def _rows_again(rows_J: Tensor, judged_B: Tensor) -> Tensor:
    """What is known of the judged rows, as all rows: false for the others."""
    rows_B = judged_B.new_zeros(judged_B.shape)
    rows_B[judged_B] = rows_J
    return rows_B


def _like(promised: Tensor, result: Tensor, *pieces: object) -> Tensor:
    """What these pieces gave, if it has the shape of what was promised."""
    shape = getattr(result, "shape", None)
    if shape != promised.shape:
        names = ", ".join(type(piece).__name__ for piece in pieces)
        gave = type(result).__name__ if shape is None else f"a tensor of shape {tuple(shape)}"
        raise ValueError(
            f"{names}: gave {gave}; must be a tensor of shape {tuple(promised.shape)}, by "
            f"responses{' and tokens' if promised.ndim == 2 else ''}"
        )
    return result


def _asked(piece: Callable[..., Result], *arguments: Any) -> Result:
    """What a piece gives. Raises ValueError if it changes what it was given, which others read."""
    given = [each for each in arguments if not isinstance(each, LossInput)]
    for batch in arguments:
        if isinstance(batch, LossInput):
            given += [batch.logp_BT, batch.mask_BT, batch.advantage_B, *batch.logps.values()]
    before = [_version(tensor) for tensor in given]
    result = piece(*arguments)
    if [_version(tensor) for tensor in given] != before:
        raise ValueError(f"{type(piece).__name__}: changes a tensor that it was given; make a copy")
    return result


def _version(tensor: Tensor) -> int:
    """How often a tensor was changed in place, as far as torch counts it."""
    return -1 if tensor.is_inference() else tensor._version


def _constant(result: Tensor, piece: object) -> Tensor:
    """A factor of ∇log π_θ, if it is one: with a gradient of its own it would add to that one."""
    if result.requires_grad:
        raise ValueError(
            f"{type(piece).__name__}: gave a tensor with a gradient; must be without (.detach())"
        )
    return result


def tokens(log_ratio_BT: Tensor, advantage_B: Tensor) -> LossInput:
    """Live tokens known by log ρ and advantage alone, to look at a clip or a weight by itself."""
    import torch

    mask_BT = torch.ones_like(log_ratio_BT, dtype=torch.bool)
    rows_B = torch.arange(len(advantage_B))
    totals = Totals(tokens=mask_BT.numel(), groups=len(rows_B))
    return LossInput(
        logp_BT=log_ratio_BT,
        logps={"behavior": torch.zeros_like(log_ratio_BT)},
        advantages=Advantages(advantage_B, mask_BT, torch.ones_like(rows_B), totals),
        groups_B=rows_B,
        versions_B=torch.zeros_like(rows_B),
        index=StepIndex(0, 0, 0, 0),
    )
