"""The one loss, the interfaces of the pieces that it is made of, and the plainest piece of each.

With the plainest ones the loss is REINFORCE on the responses as they are. Other pieces stand in the
module of their slot; ratios and aggregations are so short that all of them stand here.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from rec_experiments.algo.advantages import (
    Advantage,
    DataWeighting,
    Truncation,
    group_sum,
    with_lengths,
)
from rec_experiments.algo.inputs import Advantages, LossInput, LossOutput, Outcomes, Totals
from rec_experiments.common.batch import StepIndex, Tensor
from rec_experiments.common.pieces import Needs, Piece

if TYPE_CHECKING:
    import numpy as np


@runtime_checkable
class Ratio(Protocol):
    def __call__(self, batch: LossInput) -> Tensor:
        """The log-ratio that clip and weight use, B x T, without gradient; 0 at tokens that are not
        live."""

    def describe(self) -> str:
        """The ratio as the formula writes it."""


@runtime_checkable
class Clip(Protocol):
    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        """Boolean B x T: True where the token keeps its gradient. log_ratio_BT: of `ratio`."""

    def describe(self, ratio: str) -> str:
        """Which tokens are kept, given the name of the ratio."""


@runtime_checkable
class Weight(Protocol):
    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        """B x T, without gradient. log_ratio_BT: of `ratio`."""

    def describe(self, ratio: str) -> str:
        """The factor in the formula, empty for 1."""


@runtime_checkable
class Correction(Protocol):
    def __call__(self, batch: LossInput) -> Tensor | None:
        """Factor on each token's gradient, B x T, without gradient; None for 1."""

    def describe(self) -> str:
        """The factor in the formula, empty for 1."""


@runtime_checkable
class Regularizer(Protocol):
    def __call__(self, batch: LossInput) -> Tensor | None:
        """The loss of each token, B x T, differentiable; None to add nothing."""

    def describe(self) -> str:
        """The term in the formula, empty for none."""


@runtime_checkable
class Aggregation(Protocol):
    def __call__(self, loss_BT: Tensor, advantages: Advantages) -> Tensor:
        """These rows' share of the loss; the shares of all micro-batches add up to it.

        loss_BT is 0 at tokens that are not live. Denominators are those of the whole mini-batch.
        """

    def describe(self) -> str:
        """The normalisation in words."""


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A piece for each slot of g = Σ keep · weight · advantage · ∇ log π_θ − ∇ regulariser.

    `contract.check` tests once that the pieces keep to their interfaces; the loss relies on it.
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

    @functools.cached_property
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

    def has_gradient(self, advantages: Advantages) -> Tensor:
        """Boolean B: sequences that can change the policy. The others need no backward pass."""
        live_B = advantages.mask_BT.any(1)
        if isinstance(self.regularizer, NoRegularizer):
            return (advantages.advantage_B != 0) & live_B
        return live_B

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


def _of_all_rows(rows_J: Tensor, judged_B: Tensor) -> Tensor:
    """A boolean of the judged rows, extended to all rows: false for the others."""
    rows_B = judged_B.new_zeros(judged_B.shape)
    rows_B[judged_B] = rows_J
    return rows_B


class TokenRatio(Piece):
    """ρ = π_θ/π_old of each token, π_old being the policy that drew it."""

    formula = "ρ"

    def __call__(self, batch: LossInput) -> Tensor:
        return batch.log_ratio_BT()


class SequenceRatio(Piece):
    """s = (Π_t ρ_t)^(1/|y|), the same for all tokens of a sequence (GSPO, arXiv 2507.18071)."""

    formula = "s"

    def __call__(self, batch: LossInput) -> Tensor:
        return batch.mean_B(batch.log_ratio_BT())[:, None] * batch.mask_BT


class ProximalRatio(Piece):
    """u = π_θ/π_prox of each token (decoupled PPO, arXiv 2110.00641)."""

    formula = "u"

    needs: ClassVar[Needs] = Needs(logps=frozenset({"proximal"}))

    def __call__(self, batch: LossInput) -> Tensor:
        return batch.log_ratio_BT("proximal")


class NoClip(Piece):
    """Keeps every token."""

    formula = "none, keeps every token"

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return log_ratio_BT.new_ones(log_ratio_BT.shape).bool()


class NoWeight(Piece):
    """1 for every token (NoIS)."""

    formula = ""

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return log_ratio_BT.new_ones(log_ratio_BT.shape)


class NoCorrection(Piece):
    """The sampler's log-probabilities are taken as they are, as in the paper."""

    formula = ""

    def __call__(self, batch: LossInput) -> Tensor | None:
        return None


class NoRegularizer(Piece):
    """No extra loss."""

    formula = ""

    def __call__(self, batch: LossInput) -> Tensor | None:
        return None


class TokenMean(Piece):
    """Sum over tokens / live tokens of the mini-batch, as the paper's runs did."""

    formula = "mean over the response tokens of the whole mini-batch"

    def __call__(self, loss_BT: Tensor, advantages: Advantages) -> Tensor:
        return loss_BT.sum() / max(1, advantages.totals.tokens)


class SequenceMean(Piece):
    """Token sums, mean over the live sequences of each group, then over the groups that have one:
    the 1/K Σ_i Σ_t of Eq. 1 and Eq. 8, the 1/|S| Σ_{i∈S} Σ_t of Eq. 10."""

    formula = "token sums, mean over the sequences of a group, then over the groups"

    def __call__(self, loss_BT: Tensor, advantages: Advantages) -> Tensor:
        share_B = loss_BT.sum(1) / advantages.counted_B.clamp(min=1)
        return share_B.sum() / max(1, advantages.totals.groups)


class SequenceTokenMean(Piece):
    """Token means of each sequence, mean over the live sequences of each group, then over the
    groups that have one: the 1/|y_i| Σ_t of GRPO as it was first written, and of GSPO."""

    formula = "token means, mean over the sequences of a group, then over the groups"

    def __call__(self, loss_BT: Tensor, advantages: Advantages) -> Tensor:
        length_B = advantages.mask_BT.sum(1).clamp(min=1)
        share_B = loss_BT.sum(1) / length_B / advantages.counted_B.clamp(min=1)
        return share_B.sum() / max(1, advantages.totals.groups)


class GroupTokenMean(Piece):
    """Sum over the tokens of a group / its live tokens, mean over the groups: the prompt-level
    average of ScaleRL (arXiv 2510.13786) and of DAPO's Eq. 8."""

    formula = "mean over the response tokens of a group, then over the groups"

    def __call__(self, loss_BT: Tensor, advantages: Advantages) -> Tensor:
        share_B = loss_BT.sum(1) / advantages.group_tokens_B.clamp(min=1)
        return share_B.sum() / max(1, advantages.totals.groups)


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
