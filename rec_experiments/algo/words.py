"""What each piece computes, in the words and signs of a formula; what a run prints at its start.

A template is filled with the fields of its piece and the name of its ratio or advantage. A piece
from another package has its own `describe`, or the first line of its docstring.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rec_experiments.algo import (
    advantages,
    aggregation,
    batch_clips,
    best_of_k,
    clips,
    corrections,
    covariance,
    data_weighting,
    ratios,
    reductions,
    regularizers,
    sequence_clips,
    truncation,
    weights,
)

if TYPE_CHECKING:
    from rec_experiments.algo.surrogate import Algorithm


def describe(algorithm: Algorithm) -> list[str]:
    """The formula, a line for each part, and the parts that reduce to simpler ones."""
    lines, simple = _parts(algorithm), _parts(reductions.simplified(algorithm))
    return [
        *(f"{part}: {text}" for part, text in lines.items()),
        *(
            f"{part} reduces to: {simple.get(part, 'none')}"
            for part, text in lines.items()
            if simple.get(part) != text
        ),
    ]


def _parts(algorithm: Algorithm) -> dict[str, str]:
    ratio = of(algorithm.ratio)
    advantage = of(algorithm.data_weighting, of(algorithm.advantage))
    factors = ["M", of(algorithm.weight, ratio), of(algorithm.correction), "∇log π_θ", advantage]
    parts = {
        "gradient": f"Σ {' · '.join(factor for factor in factors if factor)}",
        "mask M": of(algorithm.clip, ratio),
        "extra loss": of(algorithm.regularizer),
        "truncation": of(algorithm.truncation),
        "normalised": of(algorithm.aggregation),
    }
    return {part: text for part, text in parts.items() if text}


def of(piece: Any, *name: str) -> str:
    """The words of a piece. name: of the ratio for a clip or a weight, of the advantage for a data
    weighting."""
    found = TEMPLATES.get(type(piece))
    if found is None:
        return piece.describe(*name).strip(" ·")
    if callable(found):
        return found(piece, *name)
    return found.format(*name, **vars(piece))


def _one_side(floor: str, ratio: str, ceiling: str) -> str:
    """Bounds that each hold for one sign of A; an empty bound is none."""
    bounds = [
        f"{ratio} ≤ {ceiling} where A > 0" if ceiling else "",
        f"{ratio} ≥ {floor} where A < 0" if floor else "",
    ]
    return " and ".join(bound for bound in bounds if bound) or "every token"


def _interval(floor: str, middle: str, ceiling: str) -> str:
    if not floor and not ceiling:
        return "every token"
    return f"{floor} ≤ {middle}".removeprefix(" ≤ ") + f" ≤ {ceiling}".removesuffix(" ≤ ")


def _below(low: float | None) -> str:
    return "" if low is None else f"{1 - low:g}"


def _above(high: float | None) -> str:
    return "" if high is None else f"{1 + high:g}"


def _bound(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{sign}{value:g}"


def _bounds(clip: clips.RatioBounds, ratio: str) -> str:
    return _one_side(_below(clip.low), ratio, _above(clip.high))


def _ring(clip: clips.Ring, ratio: str) -> str:
    inner = _interval(_below(clip.low), ratio, _above(clip.high))
    below = f", {ratio} ≤ {_below(clip.outer_low)} where A > 0" if clip.outer_low else ""
    above = f", {ratio} ≥ {_above(clip.outer_high)} where A < 0" if clip.outer_high else ""
    return f"ring, keeps {inner}{below}{above}"


def _around_proximal(clip: clips.AroundProximal, ratio: str) -> str:
    kept = _one_side(_bound(clip.low, "ρ' − "), ratio, _bound(clip.high, "ρ' + "))
    return f"one-side, keeps {kept} [ρ' = π_prox/π_behavior]"


def _divergence(distance: str) -> Callable[[Any, str], str]:
    def words(clip: clips.Divergence, ratio: str) -> str:
        up = _bound(clip.delta_high) or "∞"
        down = _bound(clip.delta_low) or "∞"
        return f"drops {distance} > {up} upwards where A > 0, > {down} downwards where A < 0"

    return words


def _second_moment(among: str) -> Callable[[Any, str], str]:
    def words(clip: batch_clips.SecondMoment, ratio: str) -> str:
        moment = (
            f"of {among.format(ratio)} drops the largest (log {ratio})² until the mean of the "
            f"others is ≤ {clip.threshold:g}"
        )
        if clip.low is None and clip.high is None:
            return moment
        return f"{moment}; one-side, keeps {_bounds(clip, ratio)}"

    return words


OUTWARD = "the tokens with A > 0 and {0} > 1, or A < 0 and {0} < 1,"


def _second_moment_bounds(clip: batch_clips.SecondMomentBounds, ratio: str) -> str:
    limits = [
        f"{_below(clip.miniclip_low)} below" if clip.miniclip_low is not None else "",
        f"{_above(clip.miniclip_high)} above" if clip.miniclip_high is not None else "",
    ]
    closest = " and ".join(limit for limit in limits if limit)
    ending = f"; no closer than {closest}" if closest else ""
    return (
        f"of {OUTWARD.format(ratio)} keeps |log {ratio}| < τ, the largest for which the mean of "
        f"min((log {ratio})², τ²) is < {clip.threshold:g}{ending}"
    )


def _correction(piece: corrections.MismatchCorrection) -> str:
    weight = {"one": "", "token": "κ", "product": "Π κ"}[piece.weight]
    if weight and piece.cap is not None:
        weight = f"min({weight}, {piece.cap:g})"
    measure = {
        "token": "κ",
        "product": "Π κ",
        "mean": "(Π κ)^(1/|y|)",
        "k3": "mean of κ − 1 − log κ",
        "binary_kl": "KL of the token against the rest, either way,",
    }[piece.measure]
    band = ""
    if piece.low is not None or piece.high is not None:
        band = f"1({_interval(_bound(piece.low), measure, _bound(piece.high))})"
    return " · ".join(factor for factor in (weight, band) if factor)


COVARIANCE = "[cov = (A − mean A)·(log π_θ − mean log π_θ), means over all tokens]"


def _power(ratio: str, power: float) -> str:
    return {0.0: "1", 1.0: ratio, -1.0: f"1/{ratio}"}.get(power, f"{ratio}^{power:g}")


def _capped(factor: str, cap: float | None) -> str:
    return factor if cap is None or factor == "1" else f"min({factor}, {cap:g})"


TEMPLATES: dict[type, str | Callable[..., str]] = {
    ratios.TokenRatio: "ρ",
    ratios.SequenceRatio: "s",
    ratios.ProximalRatio: "u",
    # advantages
    advantages.AsGiven: "A as given",
    advantages.GroupMean: lambda a: f"(r − (r̄ {a.shift:+g}))" if a.shift else "(r − r̄)",
    advantages.GroupStandard: "(r − r̄)/σ_r",
    advantages.GroupWhitened: "(r − r̄)/√(σ_r² + {epsilon:g})",
    advantages.BatchStandard: "(r − r̄)/σ, σ of all r − r̄ of the mini-batch",
    advantages.LengthWeighted: "(r − Σ l r/Σ l), l the length of a response",
    advantages.LeaveOneOut: "(r − r̄ of the others)",
    advantages.RelativeToMean: "(r − r̄)/r̄",
    advantages.FixedBaseline: "{scale:g}·(r − {baseline:g})",
    advantages.OptimalValue: "(r − V*), V* = {temperature:g} · log mean exp(r/{temperature:g})",
    advantages.MaxAtK: lambda a: (
        f"K·(mean over sets of {a.k} of best{' − best of the others' if a.without_own else ''})"
    ),
    # of an advantage {0}
    data_weighting.Uniform: "{0}",
    data_weighting.DropNegatives: "{0} on the subset with excess negatives dropped",
    data_weighting.VariedGroups: "{0}, groups of equal rewards masked out",
    data_weighting.ExponentialWeight: "exp(A/{temperature:g})·A with A = {0}",
    data_weighting.PairwiseWeight: (
        "(Σ_j w_j/K)·w·(A − Ā_w) with w = exp(A/{temperature:g}), A = {0}"
    ),
    # tokens that are kept, by a ratio {0}
    clips.NoClip: "none, keeps every token",
    clips.OneSide: lambda clip, ratio: f"one-side, keeps {_bounds(clip, ratio)}",
    clips.TwoSide: lambda clip, ratio: (
        f"two-side, keeps {_interval(_below(clip.low), ratio, _above(clip.high))}"
    ),
    clips.Ring: _ring,
    clips.Dual: lambda clip, ratio: (
        f"one-side, keeps {_bounds(clip, ratio)}; drops {ratio} > {clip.ceiling:g} where A < 0"
    ),
    clips.LogBounds: lambda clip, ratio: (
        "one-side, keeps "
        + _one_side(_bound(clip.log_low, "−"), f"log {ratio}", _bound(clip.log_high))
    ),
    clips.Reciprocal: lambda clip, ratio: (
        f"two-side, keeps {1 / (1 + clip.epsilon):g} ≤ {ratio} ≤ {1 + clip.epsilon:g}"
    ),
    clips.AroundProximal: _around_proximal,
    clips.TotalVariation: _divergence("|π_θ − π_behavior|"),
    clips.BinaryKl: _divergence("KL(π_behavior ‖ π_θ) of token against rest"),
    clips.TwoSideVariation: lambda clip, _: (
        f"two-side, keeps |π_θ − π_behavior| ≤ {_bound(clip.delta) or '∞'}"
    ),
    clips.Isometric: lambda clip, ratio: (
        "one-side, keeps "
        + _one_side(
            f"max(1 − √({clip.delta_low:g}/π_behavior), {clip.floor:g})",
            ratio,
            f"min(1 + √({clip.delta_high:g}/π_behavior), {_bound(clip.ceiling) or '∞'})",
        )
    ),
    sequence_clips.NegativesNearBehavior: lambda clip, ratio: (
        f"one-side, keeps {_bounds(clip, ratio)}; drops responses with A < 0 and a mean "
        f"−log ρ > {_bound(clip.drift) or '∞'}"
    ),
    sequence_clips.MeanVariation: lambda clip, _: (
        f"drops {OUTWARD.format('ρ')} in responses with a mean "
        f"|ρ − 1| > {_bound(clip.bound) or '∞'}"
    ),
    sequence_clips.PrefixBudget: (
        "drops w·D > min({delta:g}, {delta:g} + δ_p Σ w − Σ w·D over the tokens before) outwards "
        "[D = |π_θ − π_behavior|, w from 1 to {last_weight:g}, δ_p the 90th percentile of D, at "
        "least {budget:g} and at most twice that]"
    ),
    sequence_clips.Veto: lambda clip, ratio: (
        f"one-side, keeps {_bounds(clip, ratio)}; where A < 0 drops what follows the first token "
        f"with ρ < {clip.trigger:g}"
    ),
    covariance.CovarianceClip: lambda clip, ratio: (
        f"one-side, keeps {_bounds(clip, ratio)}; drops {clip.fraction:g} of all tokens, drawn "
        f"from those with {clip.above:g} < cov < {clip.below:g} {COVARIANCE}"
    ),
    batch_clips.SecondMoment: _second_moment(OUTWARD),
    batch_clips.SecondMomentOfAll: _second_moment("all tokens"),
    batch_clips.SecondMomentBounds: _second_moment_bounds,
    batch_clips.Balanced: (
        "one-side, {0} ≤ {upper_start:g} to {upper_end:g} where A > 0, then {0} ≥ {lower_start:g} "
        "to {lower_end:g} where A < 0, until tokens with A > 0 make up {target:g} of the surrogate"
    ),
    # factors of the gradient, of a ratio {0}; empty for 1
    weights.NoWeight: "",
    weights.ImportanceWeight: "{0}",
    weights.BehaviorWeight: "ρ",
    weights.CappedWeight: "min({0}, {cap:g})",
    weights.BoundedWeight: "max({floor:g}, min({0}, {cap:g}))",
    weights.CappedBehavior: "min(ρ, {cap:g})",
    weights.ZeroWeight: "0",
    weights.TaperedWeight: "(1 where A ≥ 0, min(Π ρ, 1) where A < 0)",
    weights.TokenTaper: "(1 where A ≥ 0, min(ρ, 1) where A < 0)",
    weights.SoftGate: (
        "4σ(x)(1 − σ(x))·{0} [x = τ({0} − 1), τ = {tau_positive:g} where A > 0, {tau_negative:g} "
        "elsewhere]"
    ),
    weights.GeometricMean: "geometric mean of the clipped {0}",
    weights.GammaWeight: (
        "w^k·exp(λ(1 − w)) [w = Π ρ, (k, λ) = ({power_positive:g}, {decay_positive:g}) where "
        "A ≥ 0, ({power_negative:g}, {decay_negative:g}) where A < 0]"
    ),
    weights.PowerOfPositives: lambda w, ratio: (
        f"({_capped(_power(ratio, w.power), w.cap)} where A > 0, {_capped(ratio, w.cap)} elsewhere)"
    ),
    weights.SoftVariation: "ρ·(1 − sign(A)·(π_θ − π_behavior)/{epsilon:g})",
    corrections.NoCorrection: "",
    corrections.MismatchCorrection: _correction,
    # extra losses; empty for none
    regularizers.NoRegularizer: "",
    regularizers.SequenceSquare: "{tau:g}/2 · (log π_θ(y) − log π_old(y))² per sequence",
    regularizers.TokenSquare: "{tau:g} · (log π_θ − log π_old)² per token",
    regularizers.K1: "{beta:g} · log π_θ/π_ref per token (k1)",
    regularizers.K2: "{beta:g} · ½(log π_θ/π_ref)² per token (k2)",
    regularizers.K3: "{beta:g} · (π_ref/π_θ − 1 + log π_θ/π_ref) per token (k3)",
    covariance.CovariancePenalty: (
        "{beta:g} · |log π_θ/π_behavior| of the {fraction:g} of all tokens with the largest cov "
        f"{COVARIANCE}"
    ),
    regularizers.UnbiasedKl: "{beta:g} · ρ (π_ref/π_θ − 1 + log π_θ/π_ref) per token (unbiased)",
    regularizers.ExactKl: "{beta:g} · KL(π_θ ‖ π_ref) per token, exact",
    regularizers.PairSquare: (
        "{beta:g}/4 · (d_i − d_j)² over the pairs of a group, d = log π_θ(y)/π_ref(y)"
    ),
    best_of_k.OffPolicyBest: lambda r: (
        f"−c · log π_θ(y), c = K·(mean over sets of {r.k} of (1 + Σ δ)·best), δ = Π ρ − 1"
        + ("" if r.bound is None else f", at most ± {r.bound:g}")
    ),
    # what happens to responses cut at the limit; empty for nothing
    truncation.TrainTruncated: "",
    truncation.MaskTruncated: "responses cut at the limit are masked out",
    truncation.PenaliseTruncated: "responses cut at the limit lose {penalty:g} of their reward",
    aggregation.TokenMean: "mean over the response tokens of the whole mini-batch",
    aggregation.SequenceMean: (
        "token sums, mean over the sequences of a group, then over the groups"
    ),
    aggregation.GroupTokenMean: "mean over the response tokens of a group, then over the groups",
    aggregation.SequenceTokenMean: (
        "token means, mean over the sequences of a group, then over the groups"
    ),
}
