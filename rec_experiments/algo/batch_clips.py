"""Clips whose mask depends on the whole mini-batch: M2PO and BAPO."""

import math
from typing import Annotated, ClassVar

from pydantic import Field, NonNegativeFloat

from rec_experiments.algo.clips import (
    OUTWARD,
    OneSide,
    above,
    below,
    log_ceiling,
    log_floor,
    outward,
)
from rec_experiments.algo.inputs import LossInput
from rec_experiments.common.batch import Tensor
from rec_experiments.common.pieces import Needs, Piece, Share

DIGITS = 9  # of a bound that repeated steps have moved; the rest is rounding


class SecondMoment(OneSide):
    """Drops tokens that a one-side clip could drop (A > 0 and ρ > 1, or A < 0 and ρ < 1), the
    largest (log ρ)² first, until the mean of the others is at most `threshold`: Algorithm 1 of M2PO
    (arXiv 2510.01161). Of equal tokens the first, by row and position, is dropped first.

    low, high: the bounds of a further one-side clip; null in the paper.
    """

    needs: ClassVar[Needs] = Needs(whole_batch=True)
    those: ClassVar[str] = OUTWARD  # the tokens of `among`, in words
    threshold: NonNegativeFloat

    def among(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        """Boolean B x T: the tokens whose second moment is bounded; only these can be dropped."""
        return outward(log_ratio_BT, batch)

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        import torch

        among_BT = self.among(log_ratio_BT, batch)
        among_N = among_BT.flatten().nonzero().flatten()
        square_N = log_ratio_BT.flatten()[among_N].double() ** 2
        descending_N = square_N.argsort(descending=True, stable=True)
        ascending_N = square_N[descending_N].flip(0)
        count_N = torch.arange(1, len(ascending_N) + 1, device=ascending_N.device)
        kept = (ascending_N.cumsum(0) / count_N <= self.threshold).sum()  # these means ascend
        keep_N = among_BT.new_ones(among_BT.numel())
        keep_N[among_N[descending_N[: len(descending_N) - kept]]] = False
        return keep_N.view_as(among_BT) & super().__call__(log_ratio_BT, batch)

    def describe(self, ratio: str) -> str:
        moment = (
            f"of {self.those.format(ratio)} drops the largest (log {ratio})² until the mean of the "
            f"others is ≤ {self.threshold:g}"
        )
        if self.low is None and self.high is None:
            return moment
        return f"{moment}; {super().describe(ratio)}"


class SecondMomentOfAll(SecondMoment):
    """SecondMoment over all live tokens, whatever the sign of A, as in AReaL's M2PO, which takes
    the moment of π_prox/π_behavior and also clips as decoupled PPO does."""

    those: ClassVar[str] = "all tokens"

    def among(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return batch.mask_BT


class SecondMomentBounds(Piece):
    """One pair of bounds e^±τ for the tokens that a one-side clip could drop, as in the code of
    M2PO's authors (Infini-AI-Lab/M2PO, core_algos.py). If the mean of (log ρ)² exceeds the
    threshold, τ is the largest |log ρ| for which the mean of min((log ρ)², τ²) is below it. Tokens
    at τ are dropped too, so this drops more than Algorithm 1. That code computes τ for each
    micro-batch and adds 1e-12 in its comparisons; here τ is computed for the mini-batch.

    miniclip_low, miniclip_high: ratios from 1 − miniclip_low to 1 + miniclip_high are never
    dropped; null for no such range.
    """

    needs: ClassVar[Needs] = Needs(whole_batch=True)
    threshold: NonNegativeFloat
    miniclip_low: Share | None
    miniclip_high: NonNegativeFloat | None

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        outward_BT = outward(log_ratio_BT, batch)
        square_BT = log_ratio_BT.double() ** 2
        inside_BT = square_BT < self.bound(square_BT[outward_BT])
        if self.miniclip_high is not None:
            below_BT = log_ratio_BT <= log_ceiling(self.miniclip_high)
            inside_BT = inside_BT | ((log_ratio_BT > 0) & below_BT)
        if self.miniclip_low is not None:
            above_BT = log_ratio_BT >= log_floor(self.miniclip_low)
            inside_BT = inside_BT | ((log_ratio_BT < 0) & above_BT)
        return inside_BT | ~outward_BT

    def bound(self, square_N: Tensor) -> float:
        """τ²; ∞ for no bound, 0 if no token is left."""
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
        limits = [
            f"{below(self.miniclip_low)} below" if self.miniclip_low is not None else "",
            f"{above(self.miniclip_high)} above" if self.miniclip_high is not None else "",
        ]
        closest = " and ".join(limit for limit in limits if limit)
        return (
            f"of {OUTWARD.format(ratio)} keeps |log {ratio}| < τ, the largest for which the mean "
            f"of min((log {ratio})², τ²) is < {self.threshold:g}"
            + (f"; no closer than {closest}" if closest else "")
        )


class Balanced(Piece):
    """The one-side clip with bounds on ρ that move step by step until tokens with A > 0 make up
    `target` of the clipped surrogate's absolute value: Algorithm 1 of BAPO (arXiv 2510.18927). The
    upper bound moves first; the lower bound moves once the upper one is at its end.

    Raises ValueError unless 0 ≤ lower_start ≤ lower_end ≤ 1 ≤ upper_start ≤ upper_end, 0 ≤ target
    ≤ 1 and both steps are at least 1e-9.
    """

    formula = (
        "one-side, {0} ≤ {upper_start:g} to {upper_end:g} where A > 0, then {0} ≥ {lower_start:g} "
        "to {lower_end:g} where A < 0, until tokens with A > 0 make up {target:g} of the surrogate"
    )

    needs: ClassVar[Needs] = Needs(whole_batch=True)
    lower_start: float
    lower_end: float
    lower_step: Annotated[float, Field(ge=10.0**-DIGITS)]
    upper_start: float
    upper_end: float
    upper_step: Annotated[float, Field(ge=10.0**-DIGITS)]
    target: Share

    def __post_init__(self) -> None:
        if not 0 <= self.lower_start <= self.lower_end <= 1:
            raise ValueError(
                f"lower_start={self.lower_start}: must be between 0 and lower_end={self.lower_end},"
                " which is at most 1"
            )
        if not 1 <= self.upper_start <= self.upper_end:
            raise ValueError(
                f"upper_start={self.upper_start}: must be between 1 and upper_end={self.upper_end}"
            )

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        return self.search(log_ratio_BT, batch)(log_ratio_BT, batch)

    def search(self, log_ratio_BT: Tensor, batch: LossInput) -> OneSide:
        """The clip at the bounds where the search ends."""
        lower, upper = self.lower_start, self.upper_start
        while (next_lower := round(lower + self.lower_step, DIGITS)) <= self.lower_end:
            if positive_share(log_ratio_BT, batch, lower, upper) >= self.target:
                break
            if (next_upper := round(upper + self.upper_step, DIGITS)) <= self.upper_end:
                upper = next_upper
            else:
                lower = next_lower
        return OneSide(low=round(1 - lower, DIGITS), high=round(upper - 1, DIGITS))


def positive_share(log_ratio_BT: Tensor, batch: LossInput, lower: float, upper: float) -> float:
    """Σ over A > 0 of |clipped surrogate| / Σ over all; ∞ if there is nothing to balance."""
    advantage_B1 = batch.advantage_B[:, None]
    ratio_BT = log_ratio_BT.exp()
    clipped_BT = ratio_BT.clamp(max=upper).where(advantage_B1 > 0, ratio_BT.clamp(min=lower))
    value_BT = ((clipped_BT * advantage_B1).abs() * batch.mask_BT).double()
    total = float(value_BT.sum())
    return float((value_BT * (advantage_B1 > 0)).sum()) / total if total else math.inf
