"""Compositions that reduce to a simpler one, as far as their parameters alone prove it.

Each rule keeps the gradient equal on every batch. `words.describe` prints what they find.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rec_experiments.algo import (
    advantages,
    batch_clips,
    clips,
    corrections,
    covariance,
    data_weighting,
    ratios,
    regularizers,
    sequence_clips,
    truncation,
    weights,
)

if TYPE_CHECKING:
    from rec_experiments.algo.surrogate import Algorithm

# From a piece and the algorithm it is in to a simpler piece, or to the piece itself.
Rule = Callable[[Any, "Algorithm"], Any]


def simplified(algorithm: Algorithm) -> Algorithm:
    """The same gradient from the simplest pieces that are known to give it."""
    slots = {field.name: getattr(algorithm, field.name) for field in dataclasses.fields(algorithm)}
    simple = {slot: _simplest(piece, algorithm) for slot, piece in slots.items()}
    return dataclasses.replace(algorithm, **simple)


def _simplest(piece: Any, algorithm: Algorithm) -> Any:
    rule = RULES.get(type(piece))  # of the exact class: a subclass computes something else
    simpler = rule(piece, algorithm) if rule else piece
    return piece if simpler is piece else _simplest(simpler, algorithm)


def _becomes(simple: Any, **values: Any) -> Rule:
    """`simple` where the fields have these values."""

    def rule(piece: Any, _: Algorithm) -> Any:
        found = {name: getattr(piece, name) for name in values}
        return simple if found == values else piece

    return rule


def _ratio_bounds(clip: clips.RatioBounds, _: Algorithm) -> Any:
    """A floor of 1 − 1 = 0 is none."""
    return clips.NoClip() if clip.low in (None, 1) and clip.high is None else clip


def _ring(clip: clips.Ring, algorithm: Algorithm) -> Any:
    if (clip.outer_low, clip.outer_high) == (None, None):
        return clips.TwoSide(low=clip.low, high=clip.high)
    if (clip.outer_low, clip.outer_high) == (clip.low, clip.high):
        return clips.OneSide(low=clip.low, high=clip.high)
    return _ratio_bounds(clip, algorithm)


def _total_variation(clip: clips.TotalVariation, _: Algorithm) -> Any:
    """Probabilities differ by at most 1."""
    deltas = (clip.delta_low, clip.delta_high)
    return clips.NoClip() if all(delta is None or delta >= 1 for delta in deltas) else clip


def _second_moment_bounds(clip: batch_clips.SecondMomentBounds, _: Algorithm) -> Any:
    if clip.threshold > 0:
        return clip
    return clips.OneSide(low=clip.miniclip_low or 0.0, high=clip.miniclip_high or 0.0)


def _balanced(clip: batch_clips.Balanced, _: Algorithm) -> Any:
    """A search that ends where it starts."""
    digits = batch_clips.DIGITS
    can_move = round(clip.lower_start + clip.lower_step, digits) <= clip.lower_end
    if can_move and clip.target > 0:
        return clip
    low, high = round(1 - clip.lower_start, digits), round(clip.upper_start - 1, digits)
    return clips.OneSide(low=low, high=high)


def _capped(weight: weights.CappedWeight, algorithm: Algorithm) -> Any:
    """A cap that no kept token reaches."""
    reached = min(_largest_kept_ratio(algorithm.clip), weights.MAX_WEIGHT)
    return weights.ImportanceWeight() if weight.cap >= reached else weight


def _largest_kept_ratio(clip: clips.Clip) -> float:
    """Above it no token with an advantage keeps its gradient."""
    if type(clip) is clips.TwoSide and clip.high is not None:
        return 1 + clip.high
    return 1 + clip.epsilon if type(clip) is clips.Reciprocal else math.inf


def _capped_behavior(weight: weights.CappedBehavior, algorithm: Algorithm) -> Any:
    if type(algorithm.ratio) is ratios.TokenRatio:
        return weights.CappedWeight(cap=weight.cap)
    return weights.BehaviorWeight() if weight.cap == weights.MAX_WEIGHT else weight


def _behavior(weight: weights.BehaviorWeight, algorithm: Algorithm) -> Any:
    same = type(algorithm.ratio) is ratios.TokenRatio
    return weights.ImportanceWeight() if same else weight


def _bounded(weight: weights.BoundedWeight, _: Algorithm) -> Any:
    return weights.CappedWeight(cap=weight.cap) if weight.floor == 0 else weight


def _pairwise(piece: data_weighting.PairwiseWeight, algorithm: Algorithm) -> Any:
    """With weights of 1 it subtracts the group's mean, which a centered advantage does not have."""
    advantage = algorithm.advantage
    centered = type(advantage) in CENTERED or (
        type(advantage) is advantages.GroupMean and advantage.shift == 0
    )
    return data_weighting.Uniform() if piece.temperature == math.inf and centered else piece


def _one_side_but(field: str, off: float | None) -> Rule:
    """The one-side clip that is left of a subclass of it without its own part."""

    def rule(clip: Any, _: Algorithm) -> Any:
        if getattr(clip, field) != off:
            return clip
        return clips.OneSide(low=clip.low, high=clip.high)

    return rule


def _variation(clip: clips.TwoSideVariation, _: Algorithm) -> Any:
    """Probabilities differ by at most 1."""
    return clips.NoClip() if clip.delta is None or clip.delta >= 1 else clip


def _covariance_penalty(penalty: covariance.CovariancePenalty, _: Algorithm) -> Any:
    return ABSENT if 0 in (penalty.fraction, penalty.beta) else penalty


def _power_of_positives(weight: weights.PowerOfPositives, _: Algorithm) -> Any:
    if weight.power != 1:
        return weight
    return weights.CappedWeight(cap=weights.MAX_WEIGHT if weight.cap is None else weight.cap)


CENTERED = (
    advantages.GroupStandard,
    advantages.GroupWhitened,
    advantages.BatchStandard,
    advantages.LeaveOneOut,
)
ABSENT = regularizers.NoRegularizer()
RULES: dict[type, Rule] = {
    truncation.PenaliseTruncated: _becomes(truncation.TrainTruncated(), penalty=0),
    # the best of one response is its reward
    advantages.MaxAtK: _becomes(advantages.FixedBaseline(baseline=0.0, scale=1.0), k=1),
    advantages.GroupWhitened: _becomes(advantages.GroupStandard(ddof=0, epsilon=0.0), epsilon=0),
    data_weighting.ExponentialWeight: _becomes(data_weighting.Uniform(), temperature=math.inf),
    data_weighting.PairwiseWeight: _pairwise,
    clips.OneSide: _ratio_bounds,
    clips.TwoSide: _ratio_bounds,
    clips.Ring: _ring,
    clips.AroundProximal: _becomes(clips.NoClip(), low=None, high=None),
    clips.LogBounds: _becomes(clips.NoClip(), log_low=None, log_high=None),
    clips.BinaryKl: _becomes(clips.NoClip(), delta_low=None, delta_high=None),
    clips.TotalVariation: _total_variation,
    clips.TwoSideVariation: _variation,
    sequence_clips.NegativesNearBehavior: _one_side_but("drift", None),
    sequence_clips.MeanVariation: _becomes(clips.NoClip(), bound=None),
    covariance.CovarianceClip: _one_side_but("fraction", 0),
    sequence_clips.Veto: _one_side_but("trigger", 0),
    batch_clips.SecondMoment: _becomes(clips.OneSide(low=0.0, high=0.0), threshold=0),
    batch_clips.SecondMomentBounds: _second_moment_bounds,
    batch_clips.Balanced: _balanced,
    weights.CappedWeight: _capped,
    weights.PowerOfPositives: _power_of_positives,
    weights.BoundedWeight: _bounded,
    weights.CappedBehavior: _capped_behavior,
    weights.BehaviorWeight: _behavior,
    corrections.MismatchCorrection: _becomes(
        corrections.NoCorrection(), weight="one", low=None, high=None
    ),
    covariance.CovariancePenalty: _covariance_penalty,
    regularizers.SequenceSquare: _becomes(ABSENT, tau=0),
    regularizers.TokenSquare: _becomes(ABSENT, tau=0),
    regularizers.K1: _becomes(ABSENT, beta=0),
    regularizers.K2: _becomes(ABSENT, beta=0),
    regularizers.K3: _becomes(ABSENT, beta=0),
    regularizers.UnbiasedKl: _becomes(ABSENT, beta=0),
    regularizers.ExactKl: _becomes(ABSENT, beta=0),
    regularizers.PairSquare: _becomes(ABSENT, beta=0),
}
