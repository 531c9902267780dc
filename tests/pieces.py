"""Pieces of methods from the field that only the tests use: each a small class, put together by the
package's own composition, none of which touches the loop."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rec_experiments.algo.advantages import GroupMean, GroupStandard
from rec_experiments.algo.aggregation import SequenceTokenMean, TokenMean
from rec_experiments.algo.clips import OneSide
from rec_experiments.algo.corrections import NoCorrection
from rec_experiments.algo.data_weighting import Uniform
from rec_experiments.algo.ratios import ProximalRatio, SequenceRatio, TokenRatio
from rec_experiments.algo.regularizers import NoRegularizer
from rec_experiments.algo.surrogate import Algorithm
from rec_experiments.algo.truncation import TrainTruncated
from rec_experiments.algo.weights import ImportanceWeight, NoWeight
from rec_experiments.types import LossInput, Needs, Piece


@dataclass(kw_only=True, slots=True)
class CappedWeight(Piece):
    """CISPO: min(ρ, cap)."""

    cap: float

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return log_ratio_BT.clamp(max=math.log(self.cap)).exp()

    def describe(self, ratio: str) -> str:
        return f" · min({ratio}, {self.cap:g})"


@dataclass(kw_only=True, slots=True)
class TaperedWeight(Piece):
    """TOPR: 1 where A ≥ 0, clip(Π ρ, 0, 1) elsewhere."""

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        product_B1 = batch.log_ratio_BT().sum(1, keepdim=True).clamp(max=0).exp()
        return torch.where(batch.advantage_B[:, None] >= 0, 1.0, product_B1).expand_as(log_ratio_BT)

    def describe(self, ratio: str) -> str:
        return " · clip(Π ρ, 0, 1) where A < 0"


@dataclass(kw_only=True, slots=True)
class BehaviorWeight(Piece):
    """Decoupled PPO: π_θ/π_behavior, whatever ratio the clip looks at."""

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return batch.log_ratio_BT().exp()

    def describe(self, ratio: str) -> str:
        return " · ρ"


@dataclass(kw_only=True, slots=True)
class SecondMomentClip(Piece):
    """M2PO: of the tokens that PPO could clip, those with the largest (log ρ)² go, until the mean
    of the others is at most `threshold`."""

    needs: ClassVar[Needs] = Needs(whole_batch=True)
    threshold: float

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        away_BT = log_ratio_BT * batch.advantage_B[:, None] > 0
        region_N = (away_BT & batch.mask_BT).flatten().nonzero().flatten()
        square_N = log_ratio_BT.flatten()[region_N] ** 2
        descending = square_N.argsort(descending=True, stable=True)
        ascending_N = square_N[descending].flip(0)
        mean_N = ascending_N.cumsum(0) / torch.arange(1, len(ascending_N) + 1)
        kept = int((mean_N <= self.threshold).sum())  # means of ascending numbers ascend
        keep_BT = torch.ones_like(batch.mask_BT).flatten()
        keep_BT[region_N[descending[: len(descending) - kept]]] = False
        return keep_BT.view_as(batch.mask_BT)

    def describe(self, ratio: str) -> str:
        return "second moment"


@dataclass(kw_only=True, slots=True)
class BalancedClip(Piece):
    """BAPO: one-sided bounds that widen until positives have their share of the surrogate."""

    needs: ClassVar[Needs] = Needs(whole_batch=True)
    target: float

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        low, high = 0.6, 1.2
        while self.share(log_ratio_BT, batch, low, high) < self.target and low + 0.05 < 0.8 + 1e-9:
            if high + 0.05 < 2.0 + 1e-9:
                high += 0.05
            else:
                low += 0.05
        return self.inside(log_ratio_BT, batch, low, high)

    def inside(self, log_ratio_BT: Tensor, batch: LossInput, low: float, high: float) -> Tensor:
        clip = OneSide(low=1 - low, high=high - 1)
        return clip(log_ratio_BT, batch)

    def share(self, log_ratio_BT: Tensor, batch: LossInput, low: float, high: float) -> float:
        """Σ⁺/Σ of the clipped surrogate's absolute values."""
        advantage_B1 = batch.advantage_B[:, None]
        ratio_BT = log_ratio_BT.exp()
        bounded_BT = torch.where(
            advantage_B1 > 0, ratio_BT.clamp(max=high), ratio_BT.clamp(min=low)
        )
        value_BT = (bounded_BT * advantage_B1).abs() * batch.mask_BT
        positive = float((value_BT * (advantage_B1 > 0)).sum())
        total = float(value_BT.sum())
        return positive / total if total else math.inf

    def describe(self, ratio: str) -> str:
        return "balanced"


@dataclass(kw_only=True, slots=True)
class Spread(Piece):
    """0.3 KL(π_θ ‖ π_reference) − 0.2 entropy of each token, both exact."""

    needs: ClassVar[Needs] = Needs(dense=frozenset({"entropy", "kl"}))

    def __call__(self, batch: LossInput) -> Tensor:
        dense_BT = 0.3 * batch.dense["kl"] - 0.2 * batch.dense["entropy"]
        return torch.where(batch.mask_BT, dense_BT, 0.0)

    def describe(self) -> str:
        return "0.3 · KL − 0.2 · entropy"


def compose(**pieces: Piece) -> Algorithm:
    """REINFORCE, with these pieces in place of its own."""
    plain = {
        "truncation": TrainTruncated(),
        "advantage": GroupMean(shift=0.0),
        "data_weighting": Uniform(),
        "ratio": TokenRatio(),
        "clip": OneSide(low=None, high=None),
        "weight": NoWeight(),
        "correction": NoCorrection(),
        "regularizer": NoRegularizer(),
        "aggregation": TokenMean(),
    }
    return Algorithm(**{**plain, **pieces})


STANDARD = GroupStandard(ddof=1, epsilon=1e-6)
NARROW = OneSide(low=0.2, high=0.2)
METHODS = {
    "ppo": {"clip": NARROW, "weight": ImportanceWeight()},
    "cispo": {"weight": CappedWeight(cap=1.3)},
    "gspo": {
        "advantage": STANDARD,
        "ratio": SequenceRatio(),
        "clip": OneSide(low=0.03, high=0.04),
        "weight": ImportanceWeight(),
        "aggregation": SequenceTokenMean(),
    },
    "topr": {"weight": TaperedWeight()},
    "m2po": {"clip": SecondMomentClip(threshold=0.02), "weight": ImportanceWeight()},
    "bapo": {"clip": BalancedClip(target=0.45), "weight": ImportanceWeight()},
    "decoupled_ppo": {"ratio": ProximalRatio(), "clip": NARROW, "weight": BehaviorWeight()},
}


def method(name: str) -> Algorithm:
    return compose(**METHODS[name])
