"""The one loss through which every algorithm runs."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from rec_experiments.algo.advantages import Advantage, with_lengths
from rec_experiments.algo.aggregation import Aggregation
from rec_experiments.algo.clips import Clip
from rec_experiments.algo.corrections import Correction
from rec_experiments.algo.data_weighting import DataWeighting
from rec_experiments.algo.groups import group_sum
from rec_experiments.algo.inputs import Advantages, LossInput, LossOutput, Outcomes, Totals
from rec_experiments.algo.ratios import Ratio
from rec_experiments.algo.regularizers import NoRegularizer, Regularizer
from rec_experiments.algo.truncation import Truncation
from rec_experiments.algo.weights import Weight
from rec_experiments.common.batch import StepIndex, Tensor
from rec_experiments.common.pieces import Needs

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """A piece for each slot of g = Σ keep · weight · advantage · ∇ log π_θ − ∇ regulariser.

    `contract.check` tests once that the pieces keep to their protocols; the loss relies on it.
    """

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
        """Whether the loss, not only a metric, reads the reference policy."""
        return "reference" in self.needs.logps or "kl" in self.needs.dense

    def advantages(self, outcomes: Outcomes, rng: np.random.Generator) -> Advantages:
        """Advantages and denominators of a whole mini-batch, before it is cut into micro-batches.

        A response without a verifier's result is left out of baselines, loss and denominators.
        rng: for data weighting that drops responses at random.
        """
        rewards_B, counts_B = self.truncation(outcomes.rewards_B, outcomes.finished_B)
        judged_B, groups_B = outcomes.judged_B, outcomes.groups_B
        rewards_J = rewards_B[judged_B]
        advantage = with_lengths(self.advantage, outcomes.mask_BT[judged_B].sum(1))
        weighted = self.data_weighting(advantage, rewards_J, groups_B[judged_B], rng)
        advantage_B = rewards_B.new_zeros(rewards_B.shape)
        advantage_B[judged_B] = weighted.advantage_B
        mask_BT, counted_BT = (
            outcomes.mask_BT & counts_B[:, None] & _of_all_rows(rows, judged_B)[:, None]
            for rows in (weighted.live_B, weighted.counted_B)
        )
        counted_B = counted_BT.any(1)
        return Advantages(
            advantage_B=advantage_B,
            mask_BT=mask_BT,
            counted_B=group_sum(counted_B.long(), groups_B),
            group_tokens_B=group_sum(counted_BT.sum(1), groups_B),
            totals=Totals(int(counted_BT.sum()), len(groups_B[counted_B].unique())),
        )

    def loss(self, batch: LossInput) -> LossOutput:
        """These rows' share of the loss, with log-ratios and kept tokens for metrics.

        The surrogate −weight · A · log π_θ of each kept token has the gradient of the formula: the
        mask, the weight and the correction are constants.
        """
        log_ratio_BT = self.ratio(batch)
        # A token whose advantage is 0 has no gradient: it counts as kept, whatever the clip says.
        no_gradient_B1 = (batch.advantage_B == 0)[:, None]
        keep_BT = (self.clip(log_ratio_BT, batch) | no_gradient_B1) & batch.mask_BT
        weight_BT = self.weight(log_ratio_BT, batch)
        correction_BT = self.correction(batch)
        if correction_BT is not None:
            weight_BT = weight_BT * correction_BT
        surrogate_BT = -(weight_BT * batch.advantage_B[:, None]) * batch.logp_BT
        loss_BT = surrogate_BT.where(keep_BT, 0.0)
        extra_BT = self.regularizer(batch)
        if extra_BT is not None:
            loss_BT = loss_BT + extra_BT
        return LossOutput(
            loss=self.aggregation(loss_BT, batch.advantages),
            log_ratio_BT=batch.log_ratio_BT(),
            clip_log_ratio_BT=log_ratio_BT,
            keep_BT=keep_BT,
        )

    def describe(self) -> list[str]:
        """The formula, a line for each part."""
        ratio = self.ratio.describe()
        advantage = self.data_weighting.describe(self.advantage.describe())
        factors = [
            "M", self.weight.describe(ratio), self.correction.describe(), "∇log π_θ", advantage,
        ]  # fmt: skip
        parts = {
            "gradient": f"Σ {' · '.join(factor for factor in factors if factor)}",
            "mask M": self.clip.describe(ratio),
            "extra loss": self.regularizer.describe(),
            "truncation": self.truncation.describe(),
            "normalised": self.aggregation.describe(),
        }
        return [f"{part}: {text}" for part, text in parts.items() if text]

    def has_gradient(self, advantages: Advantages) -> Tensor:
        """Boolean B: sequences that can change the policy. The others need no backward pass."""
        live_B = advantages.mask_BT.any(1)
        if isinstance(self.regularizer, NoRegularizer):
            return (advantages.advantage_B != 0) & live_B
        return live_B


def _of_all_rows(rows_J: Tensor, judged_B: Tensor) -> Tensor:
    """A boolean of the judged rows, extended to all rows: false for the others."""
    rows_B = judged_B.new_zeros(judged_B.shape)
    rows_B[judged_B] = rows_J
    return rows_B


def tokens(log_ratio_BT: Tensor, advantage_B: Tensor) -> LossInput:
    """A batch of live tokens with these log-ratios and advantages, to evaluate a clip or a weight
    alone."""
    import torch

    mask_BT = torch.ones_like(log_ratio_BT, dtype=torch.bool)
    rows_B = torch.arange(len(advantage_B))
    totals = Totals(tokens=mask_BT.numel(), groups=len(rows_B))
    return LossInput(
        logp_BT=log_ratio_BT,
        logps={"behavior": torch.zeros_like(log_ratio_BT)},
        advantages=Advantages(
            advantage_B, mask_BT, torch.ones_like(rows_B), mask_BT.sum(1), totals
        ),
        groups_B=rows_B,
        version_BX=torch.zeros_like(rows_B)[:, None],
        index=StepIndex(0, 0, 0, 0),
    )
