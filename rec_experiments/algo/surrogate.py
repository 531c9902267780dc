"""The one loss through which every algorithm runs."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rec_experiments.algo.advantages import Advantage
from rec_experiments.algo.aggregation import Aggregation
from rec_experiments.algo.clips import Clip
from rec_experiments.algo.data_weighting import DataWeighting
from rec_experiments.algo.regularizers import NoRegularizer, Regularizer
from rec_experiments.algo.weights import Weight
from rec_experiments.types import Advantages, LossInput, LossOutput, Totals


@dataclass(frozen=True, kw_only=True, slots=True)
class Algorithm:
    """A row of choices: g = Σ keep · weight · advantage · ∇ log π_θ − ∇ regulariser, aggregated."""

    advantage: Advantage
    data_weighting: DataWeighting
    clip: Clip
    weight: Weight
    regularizer: Regularizer
    aggregation: Aggregation

    def credit(
        self, rewards_B: Tensor, groups_B: Tensor, mask_BT: Tensor, rng: np.random.Generator
    ) -> Advantages:
        """Advantages and denominators of a whole mini-batch, before it is cut.

        Args:
            rewards_B: scalar rewards.
            groups_B: integer ids; rows with the same id answer the same prompt.
            mask_BT: response tokens of the policy.
            rng: decides which samples are dropped, where any are.
        """
        weighted = self.data_weighting(self.advantage, rewards_B.double(), groups_B, rng)
        live_BT = mask_BT.bool() & weighted.live_B[:, None]
        totals = Totals(tokens=int(live_BT.sum()), sequences=int(live_BT.any(1).sum()))
        return Advantages(weighted.advantage_B, live_BT, totals)

    def loss(self, batch: LossInput) -> LossOutput:
        """A micro-batch's share of the loss, with the log-ratios and kept tokens for metrics."""
        mask_BT = batch.credit.mask_BT
        advantage_B = batch.credit.advantage_B.to(batch.logp_BT.dtype)
        log_ratio_BT = batch.log_ratio_BT
        keep_BT = self.clip(log_ratio_BT, advantage_B, mask_BT) & mask_BT
        weight_BT = self.weight(log_ratio_BT, advantage_B, mask_BT)
        if batch.mismatch_weight_BT is not None:
            weight_BT = weight_BT * torch.where(mask_BT, batch.mismatch_weight_BT, 0.0)
        surrogate_BT = -(weight_BT * advantage_B[:, None]) * batch.logp_BT
        loss_BT = torch.where(keep_BT, surrogate_BT, 0.0)
        extra_BT = self.regularizer(batch)
        if extra_BT is not None:
            loss_BT = loss_BT + extra_BT
        return LossOutput(self.aggregation(loss_BT, batch.credit.totals), log_ratio_BT, keep_BT)

    def has_gradient(self, credit: Advantages) -> Tensor:
        """Boolean B: sequences that can move the policy. The others need no backward pass."""
        if isinstance(self.regularizer, NoRegularizer):
            return (credit.advantage_B != 0) & credit.mask_BT.any(1)
        return credit.mask_BT.any(1)

    def describe(self) -> list[str]:
        """The formula in words: coefficient, mask, extra loss, normalisation."""
        coefficient = self.data_weighting.describe(self.advantage.describe())
        lines = [
            f"gradient: Σ M{self.weight.describe()} · ∇log π_θ · {coefficient}",
            f"mask M: {self.clip.describe()}",
        ]
        if self.regularizer.describe():
            lines.append(f"extra loss: {self.regularizer.describe()}")
        return [*lines, f"normalised: {self.aggregation.describe()}"]
