"""Clips beyond the three of the paper: bounds around another policy, on another distance, or set by
the whole mini-batch. `low` and `high` mean the two sides everywhere, null is no bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rec_experiments.algo.clips import Bounds, OneSide
from rec_experiments.types import LossInput, Needs

if TYPE_CHECKING:
    from torch import Tensor

WHOLE = Needs(whole_batch=True)
ROUNDING = 1e-9  # of a bound that was moved by repeated steps


@dataclass(kw_only=True)
class DualClip(OneSide):
    """The one-side mask, and where A < 0 also ρ ≤ ceiling: the surrogate is at least ceiling · A
    there, so that one token cannot carry the step (arXiv 1912.09729).

    Raises ValueError unless ceiling > 1.
    """

    ceiling: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 < self.ceiling < math.inf:
            raise ValueError(f"ceiling={self.ceiling}: must be greater than 1, and finite")

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        inside_BT = super().__call__(log_ratio_BT, batch)
        beyond_BT = log_ratio_BT > math.log(self.ceiling)
        return inside_BT & ~(beyond_BT & (batch.advantage_B < 0)[:, None])

    def describe(self, ratio: str) -> str:
        one_side = super().describe(ratio)
        return f"{one_side}; drops {ratio} > {self.ceiling:g} where A < 0"


@dataclass(kw_only=True)
class AroundProximal(Bounds):
    """One-side bounds on ρ around ρ' = π_prox/π_behavior: A > 0 keeps ρ ≤ ρ' + high, A < 0 keeps
    ρ ≥ max(ρ' − low, 0) (arXiv 2505.22257, Eq. 6, with π_k as the proximal policy; also Mix-PPG,
    arXiv 2507.06892). With ρ' = 1 it is the one-side mask."""

    needs: ClassVar[Needs] = Needs(logps=frozenset({"proximal"}))

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        sign_B1 = batch.advantage_B[:, None]
        proximal_BT = batch.logps["proximal"] - batch.logps["behavior"]
        moved_BT = proximal_BT.where(batch.mask_BT, 0.0).expm1()  # ρ' − 1
        keep_BT = sign_B1.expand_as(log_ratio_BT) == 0
        if self.high is None:
            keep_BT = keep_BT | (sign_B1 > 0)
        else:
            keep_BT = keep_BT | ((sign_B1 > 0) & (log_ratio_BT <= (moved_BT + self.high).log1p()))
        if self.low is None:
            return keep_BT | (sign_B1 < 0)
        floor_BT = (moved_BT - self.low).clamp(min=-1.0).log1p()
        return keep_BT | ((sign_B1 < 0) & (log_ratio_BT >= floor_BT))

    def describe(self, ratio: str) -> str:
        bounds = [
            f"{ratio} ≤ ρ' + {self.high:g} where A > 0" if self.high is not None else "",
            f"{ratio} ≥ ρ' − {self.low:g} where A < 0" if self.low is not None else "",
        ]
        kept = " and ".join(bound for bound in bounds if bound)
        return f"keeps {kept} [ρ' = π_prox/π_behavior]" if kept else "none, keeps every token"


@dataclass(kw_only=True)
class Divergence(Bounds):
    """Drops a token that is already further than `high` from the policy that drew it and would be
    pushed on: A > 0 and π_θ > π_behavior; `low` where both signs are the other way
    (DPPO, arXiv 2602.04879). The distance is that of two coins, the token against all others."""

    name: ClassVar[str]

    def distance(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        """Between π_θ and π_behavior, B x T, at least 0."""
        raise NotImplementedError

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        sign_B1 = batch.advantage_B[:, None]
        distance_BT, moved_BT = self.distance(log_ratio_BT, batch), batch.log_ratio_BT()
        above_BT = (sign_B1 > 0) & (moved_BT > 0) & ~(distance_BT <= _bound(self.high))
        below_BT = (sign_B1 < 0) & (moved_BT < 0) & ~(distance_BT <= _bound(self.low))
        return ~(above_BT | below_BT)

    def describe(self, ratio: str) -> str:
        bounds = [
            f"more than {self.high:g} up where A > 0" if self.high is not None else "",
            f"more than {self.low:g} down where A < 0" if self.low is not None else "",
        ]
        dropped = " and ".join(bound for bound in bounds if bound)
        return f"drops {self.name} {dropped}" if dropped else "none, keeps every token"


@dataclass(kw_only=True)
class TotalVariation(Divergence):
    """|π_θ − π_behavior| of the token (DPPO-Binary-TV)."""

    name: ClassVar[str] = "|π_θ − π_behavior|"

    def distance(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        behavior_BT, logp_BT = _live_logps(batch)
        return (logp_BT.exp() - behavior_BT.exp()).abs()


@dataclass(kw_only=True)
class BinaryKl(Divergence):
    """p log(p/q) + (1 − p) log((1 − p)/(1 − q)), p = π_behavior, q = π_θ of the token
    (DPPO-Binary-KL)."""

    name: ClassVar[str] = "KL(π_behavior ‖ π_θ) of token against rest"

    def distance(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        behavior_BT, logp_BT = _live_logps(batch)
        behavior_BT, logp_BT = behavior_BT.clamp(max=0.0), logp_BT.clamp(max=0.0)
        rest_BT = -behavior_BT.expm1()
        of_rest_BT = rest_BT * (rest_BT.log() - (-logp_BT.expm1()).log())
        of_token_BT = behavior_BT.exp() * (behavior_BT - logp_BT)
        return of_token_BT + of_rest_BT.where(rest_BT > 0, 0.0)


@dataclass(kw_only=True)
class SecondMoment(OneSide):
    """Of the tokens that a one-side clip could drop (A > 0 and ρ > 1, A < 0 and ρ < 1), those with
    the largest (log ρ)² go until the mean of the others is at most `threshold`: Algorithm 1 of M2PO
    (arXiv 2510.01161), over the whole mini-batch. Ties go in the order of rows, then tokens.

    low, high: further bounds as of one_side; null in the paper. Raises ValueError unless
    threshold ≥ 0.
    """

    needs: ClassVar[Needs] = WHOLE
    threshold: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.threshold < math.inf:
            raise ValueError(f"threshold={self.threshold}: must be at least 0, and finite")

    def among(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        """Boolean B x T: the tokens whose moment is bounded, and that can be dropped."""
        return _outward(log_ratio_BT, batch)

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        import torch

        among_BT = self.among(log_ratio_BT, batch)
        region_N = among_BT.flatten().nonzero().flatten()
        square_N = log_ratio_BT.flatten()[region_N].double() ** 2
        descending_N = square_N.argsort(descending=True, stable=True)
        ascending_N = square_N[descending_N].flip(0)
        count_N = torch.arange(1, len(ascending_N) + 1, device=ascending_N.device)
        kept = (ascending_N.cumsum(0) / count_N <= self.threshold).sum()  # these means ascend
        keep_N = among_BT.new_ones(among_BT.numel())
        keep_N[region_N[descending_N[: len(descending_N) - kept]]] = False
        return keep_N.view_as(among_BT) & super().__call__(log_ratio_BT, batch)

    def describe(self, ratio: str) -> str:
        moment = (
            f"of the tokens with {self._among(ratio)} drops the largest (log {ratio})² until the "
            f"mean of the others is ≤ {self.threshold:g}"
        )
        if self.low is None and self.high is None:
            return moment
        return f"{moment}; {super().describe(ratio)}"

    def _among(self, ratio: str) -> str:
        return f"A > 0 and {ratio} > 1, or A < 0 and {ratio} < 1,"


@dataclass(kw_only=True)
class SecondMomentOfAll(SecondMoment):
    """As SecondMoment, of all live tokens whatever the sign of A: AReaL's reading of M2PO, which
    takes the moment of π_prox/π_behavior and clips as decoupled PPO besides."""

    def among(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return batch.mask_BT

    def _among(self, ratio: str) -> str:
        return "any A"


@dataclass(kw_only=True)
class SecondMomentBounds(SecondMoment):
    """One pair of bounds e^±τ for the tokens that a one-side clip could drop, as the authors' code
    of M2PO has it (Infini-AI-Lab/M2PO, core_algos.py). Where the mean of (log ρ)² is over the
    threshold, τ is the largest |log ρ| such that the mean of min((log ρ)², τ²) is below it; tokens
    at τ go too, so that more go than by Algorithm 1. That code decides in each micro-batch and has
    1e-12 in its comparisons; here the mini-batch decides.

    low, high: the bounds do not close further than 1 − low and 1 + high; null for no such limit.
    """

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        outward_BT = _outward(log_ratio_BT, batch)
        square_BT = log_ratio_BT.double() ** 2
        inside_BT = square_BT < self.bound(square_BT[outward_BT])
        if self.high is not None:
            inside_BT = inside_BT | ((log_ratio_BT > 0) & self.below_ceiling(log_ratio_BT))
        if self.low is not None:
            inside_BT = inside_BT | ((log_ratio_BT < 0) & self.above_floor(log_ratio_BT))
        return inside_BT | ~outward_BT

    def bound(self, square_N: Tensor) -> float:
        """τ²; ∞ for no bound, 0 where no token is left."""
        import torch

        count = len(square_N)
        if count == 0 or float(square_N.mean()) <= self.threshold:
            return math.inf
        ascending_N = square_N.sort().values
        above_N = torch.arange(count - 1, -1, -1, device=square_N.device)
        cut_N = ascending_N.cumsum(0) + above_N * ascending_N  # Σ of all, cut at each; ascends
        below = int((cut_N < self.threshold * count).sum())
        return float(ascending_N[below - 1]) if below else 0.0

    def describe(self, ratio: str) -> str:
        closest = [
            f"{1 - self.low:g} below" if self.low is not None else "",
            f"{1 + self.high:g} above" if self.high is not None else "",
        ]
        limits = " and ".join(limit for limit in closest if limit)
        return (
            f"of the tokens with {self._among(ratio)} keeps |log {ratio}| < τ, the largest for "
            f"which the mean of min((log {ratio})², τ²) is < {self.threshold:g}"
            + (f"; no closer than {limits}" if limits else "")
        )


@dataclass(kw_only=True)
class Balanced(OneSide):
    """One-side bounds that move, step by step, until tokens with A > 0 make `target` of the clipped
    surrogate's absolute value: Algorithm 1 of BAPO (arXiv 2510.18927), over the whole mini-batch.
    The upper bound goes from `high` to `high_end`, and only then the lower from `low` to `low_end`.

    Raises ValueError unless 0 ≤ low_end ≤ low, high ≤ high_end, 0 ≤ target ≤ 1 and steps are > 0.
    """

    needs: ClassVar[Needs] = WHOLE
    low_end: float
    high_end: float
    low_step: float
    high_step: float
    target: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low is None or not 0 <= self.low_end <= self.low:
            raise ValueError(f"low={self.low}: must be at least low_end={self.low_end} ≥ 0")
        if self.high is None or not self.high <= self.high_end < math.inf:
            raise ValueError(f"high={self.high}: must be at most high_end={self.high_end}")
        for name in ("low_step", "high_step"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be greater than 0")
        if not 0 <= self.target <= 1:
            raise ValueError(f"target={self.target}: must be between 0 and 1")

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return self.search(log_ratio_BT, batch)(log_ratio_BT, batch)

    def search(self, log_ratio_BT: Tensor, batch: LossInput) -> OneSide:
        """The clip at the bounds that are found."""
        assert self.low is not None
        assert self.high is not None
        low, high = self.low, self.high
        while low - self.low_step >= self.low_end - ROUNDING:
            if _positive_share(log_ratio_BT, batch, low, high) >= self.target:
                break
            if high + self.high_step <= self.high_end + ROUNDING:
                high += self.high_step
            else:
                low = max(low - self.low_step, self.low_end)
        return OneSide(low=low, high=min(high, self.high_end))

    def describe(self, ratio: str) -> str:
        assert self.low is not None
        assert self.high is not None
        return (
            f"one-side, {ratio} ≤ {1 + self.high:g} to {1 + self.high_end:g} where A > 0, then "
            f"{ratio} ≥ {1 - self.low:g} to {1 - self.low_end:g} where A < 0, until A > 0 makes "
            f"{self.target:g} of the surrogate"
        )


def _outward(log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
    """Live tokens that a one-side clip could drop: A > 0 and ρ > 1, A < 0 and ρ < 1."""
    return (log_ratio_BT * batch.advantage_B[:, None] > 0) & batch.mask_BT


def _positive_share(log_ratio_BT: Tensor, batch: LossInput, low: float, high: float) -> float:
    """Σ over A > 0 of |clipped surrogate| / Σ over all; ∞ where there is nothing to balance."""
    advantage_B1 = batch.advantage_B[:, None]
    ratio_BT = log_ratio_BT.exp()
    clipped_BT = ratio_BT.clamp(max=1 + high).where(advantage_B1 > 0, ratio_BT.clamp(min=1 - low))
    value_BT = ((clipped_BT * advantage_B1).abs() * batch.mask_BT).double()
    total = float(value_BT.sum())
    return float((value_BT * (advantage_B1 > 0)).sum()) / total if total else math.inf


def _live_logps(batch: LossInput) -> tuple[Tensor, Tensor]:
    """log π_behavior and log π_θ of live tokens, without gradient; 0 elsewhere."""
    behavior_BT = batch.logps["behavior"].where(batch.mask_BT, 0.0)
    return behavior_BT, batch.logp_BT.detach().where(batch.mask_BT, 0.0)


def _bound(bound: float | None) -> float:
    return math.inf if bound is None else bound
