"""Compositions that reduce to a simpler one, as far as their parameters alone prove it.

Each rule keeps the gradient equal on every batch. `words.describe` prints what it finds.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from rec_experiments.algo.advantages import (
    Advantage,
    FixedBaseline,
    GroupMean,
    GroupStandard,
    GroupWhitened,
    LeaveOneOut,
    MaxAtK,
)
from rec_experiments.algo.batch_clips import DIGITS, Balanced, SecondMoment, SecondMomentBounds
from rec_experiments.algo.clips import (
    AroundProximal,
    BinaryKl,
    Clip,
    LogBounds,
    NoClip,
    OneSide,
    Reciprocal,
    Ring,
    TotalVariation,
    TwoSide,
)
from rec_experiments.algo.corrections import Correction, MismatchCorrection, NoCorrection
from rec_experiments.algo.data_weighting import (
    DataWeighting,
    ExponentialWeight,
    PairwiseWeight,
    Uniform,
)
from rec_experiments.algo.ratios import Ratio, TokenRatio
from rec_experiments.algo.regularizers import (
    K1,
    K2,
    K3,
    ExactKl,
    NoRegularizer,
    PairSquare,
    Regularizer,
    SequenceSquare,
    TokenSquare,
)
from rec_experiments.algo.truncation import PenaliseTruncated, TrainTruncated, Truncation
from rec_experiments.algo.weights import (
    MAX_WEIGHT,
    BehaviorWeight,
    BoundedWeight,
    CappedBehavior,
    CappedWeight,
    ImportanceWeight,
    Weight,
)

if TYPE_CHECKING:
    from rec_experiments.algo.surrogate import Algorithm

# Rules compare exact types: a class derived from one of ours computes something else.


def simplified(algorithm: Algorithm) -> Algorithm:
    """The same gradient from the simplest pieces that are known to give it."""
    return dataclasses.replace(
        algorithm,
        truncation=_truncation(algorithm.truncation),
        advantage=_advantage(algorithm.advantage),
        data_weighting=_data_weighting(algorithm.data_weighting, algorithm.advantage),
        clip=_clip(algorithm.clip),
        weight=_weight(algorithm.weight, algorithm.ratio, algorithm.clip),
        correction=_correction(algorithm.correction),
        regularizer=_regularizer(algorithm.regularizer),
    )


def _truncation(piece: Truncation) -> Truncation:
    if type(piece) is PenaliseTruncated and piece.penalty == 0:
        return TrainTruncated()
    return piece


def _advantage(piece: Advantage) -> Advantage:
    if type(piece) is MaxAtK and piece.k == 1:
        return FixedBaseline(baseline=0.0, scale=1.0)  # the best of one response is its reward
    if type(piece) is GroupWhitened and piece.epsilon == 0:
        return GroupStandard(ddof=0, epsilon=0.0)
    return piece


def _data_weighting(piece: DataWeighting, advantage: Advantage) -> DataWeighting:
    """At an infinite temperature every weight is 1; pairs then subtract the group's mean."""
    if type(piece) is ExponentialWeight and piece.temperature == math.inf:
        return Uniform()
    centered = type(advantage) in (GroupStandard, GroupWhitened, LeaveOneOut) or (
        type(advantage) is GroupMean and advantage.shift == 0
    )
    if type(piece) is PairwiseWeight and piece.temperature == math.inf and centered:
        return Uniform()
    return piece


def _clip(piece: Clip) -> Clip:
    simple = piece
    if type(piece) is Ring:
        if piece.outer_low is None and piece.outer_high is None:
            simple = TwoSide(low=piece.low, high=piece.high)
        elif (piece.outer_low, piece.outer_high) == (piece.low, piece.high):
            simple = OneSide(low=piece.low, high=piece.high)
    elif type(piece) is SecondMoment and piece.threshold == 0:
        simple = OneSide(low=0.0, high=0.0)
    elif type(piece) is SecondMomentBounds and piece.threshold == 0:
        simple = OneSide(low=piece.miniclip_low or 0.0, high=piece.miniclip_high or 0.0)
    elif type(piece) is Balanced:
        stays = round(piece.lower_start + piece.lower_step, DIGITS) > piece.lower_end
        if stays or piece.target == 0:
            simple = OneSide(
                low=round(1 - piece.lower_start, DIGITS), high=round(piece.upper_start - 1, DIGITS)
            )
    return NoClip() if _keeps_every_token(simple) else simple


def _keeps_every_token(clip: Clip) -> bool:
    if type(clip) is OneSide or type(clip) is TwoSide or type(clip) is Ring:
        return clip.low in (None, 1) and clip.high is None  # ρ ≥ 1 − 1 always
    if type(clip) is AroundProximal:
        return clip.low is None and clip.high is None
    if type(clip) is LogBounds:
        return clip.log_low is None and clip.log_high is None
    if type(clip) is BinaryKl:
        return clip.delta_low is None and clip.delta_high is None
    if type(clip) is TotalVariation:  # probabilities differ by at most 1
        return all(delta is None or delta >= 1 for delta in (clip.delta_low, clip.delta_high))
    return False


def _weight(piece: Weight, ratio: Ratio, clip: Clip) -> Weight:
    if type(piece) is BoundedWeight and piece.floor == 0:
        piece = CappedWeight(cap=piece.cap)
    if type(piece) is CappedBehavior and type(ratio) is TokenRatio:
        piece = CappedWeight(cap=piece.cap)
    if type(piece) is CappedWeight and piece.cap >= min(_largest_kept_ratio(clip), MAX_WEIGHT):
        piece = ImportanceWeight()
    if type(piece) is CappedBehavior and piece.cap == MAX_WEIGHT:
        piece = BehaviorWeight()
    if type(piece) is BehaviorWeight and type(ratio) is TokenRatio:
        piece = ImportanceWeight()
    return piece


def _largest_kept_ratio(clip: Clip) -> float:
    """Above it no token with an advantage keeps its gradient."""
    if type(clip) is TwoSide and clip.high is not None:
        return 1 + clip.high
    return 1 + clip.epsilon if type(clip) is Reciprocal else math.inf


def _correction(piece: Correction) -> Correction:
    if (
        type(piece) is MismatchCorrection
        and piece.weight == "one"
        and piece.low is None
        and piece.high is None
    ):
        return NoCorrection()
    return piece


def _regularizer(piece: Regularizer) -> Regularizer:
    coefficient = None
    if type(piece) is SequenceSquare or type(piece) is TokenSquare:
        coefficient = piece.tau
    if type(piece) in (K1, K2, K3, ExactKl, PairSquare):
        coefficient = getattr(piece, "beta", None)
    return NoRegularizer() if coefficient == 0 else piece
