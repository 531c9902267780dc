"""Methods of the field as tests compose them, with bounds that bite in a mini-batch of few tokens;
and a piece that only the tests use."""

from typing import ClassVar

import torch
from torch import Tensor

from rec_experiments.algo.advantages import GroupMean, GroupStandard, TrainTruncated, Uniform
from rec_experiments.algo.batch_clips import Balanced, SecondMoment
from rec_experiments.algo.clips import OneSide
from rec_experiments.algo.inputs import LossInput
from rec_experiments.algo.loss import (
    Algorithm,
    NoClip,
    NoCorrection,
    NoRegularizer,
    NoWeight,
    ProximalRatio,
    SequenceRatio,
    SequenceTokenMean,
    TokenMean,
    TokenRatio,
)
from rec_experiments.algo.weights import (
    BehaviorWeight,
    CappedWeight,
    ImportanceWeight,
    TaperedWeight,
)
from rec_experiments.common.pieces import Needs, Piece


class Spread(Piece):
    """0.3 KL(π_θ ‖ π_reference) − 0.2 entropy of each token, both exact."""

    needs: ClassVar[Needs] = Needs(dense=frozenset({"entropy", "kl"}))

    def __call__(self, batch: LossInput) -> Tensor:
        dense_BT = 0.3 * batch.dense["kl"] - 0.2 * batch.dense["entropy"]
        return torch.where(batch.mask_BT, dense_BT, 0.0)


def compose(**pieces: Piece) -> Algorithm:
    """REINFORCE, with these pieces in place of its own."""
    plain = {
        "truncation": TrainTruncated(),
        "advantage": GroupMean(shift=0.0),
        "data_weighting": Uniform(),
        "ratio": TokenRatio(),
        "clip": NoClip(),
        "weight": NoWeight(),
        "correction": NoCorrection(),
        "regularizer": NoRegularizer(),
        "aggregation": TokenMean(),
    }
    return Algorithm(**{**plain, **pieces})


STANDARD = GroupStandard(ddof=1, epsilon=1e-6)
NARROW = OneSide(low=0.2, high=0.2)
MOMENT = SecondMoment(low=None, high=None, threshold=0.02)
BALANCED = Balanced(
    lower_start=0.6,
    lower_end=0.8,
    lower_step=0.05,
    upper_start=1.2,
    upper_end=2.0,
    upper_step=0.05,
    target=0.45,
)
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
    "m2po": {"clip": MOMENT, "weight": ImportanceWeight()},
    "bapo": {"clip": BALANCED, "weight": ImportanceWeight()},
    "decoupled_ppo": {"ratio": ProximalRatio(), "clip": NARROW, "weight": BehaviorWeight()},
}


def method(name: str) -> Algorithm:
    return compose(**METHODS[name])
