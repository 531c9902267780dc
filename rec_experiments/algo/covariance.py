"""A clip and a penalty that choose tokens by their share of the covariance of advantage and
log-probability, through which a policy loses its entropy (arXiv 2505.22617).

A token's share of the covariance is (A − Ā)(log π_θ − mean log π_θ), with means over the live
tokens of the whole mini-batch.
"""

from typing import ClassVar

from pydantic import NonNegativeFloat

from rec_experiments.algo.clips import OneSide
from rec_experiments.algo.inputs import LossInput
from rec_experiments.common import rng
from rec_experiments.common.batch import Tensor
from rec_experiments.common.pieces import Needs, Piece, Share

COVARIANCE = "[cov = (A − mean A)·(log π_θ − mean log π_θ), means over all tokens]"


class CovarianceClip(OneSide):
    """The one-side mask without some tokens whose share of the covariance is between `above` and
    `below`: a fraction of the live tokens, at least one, drawn at random from those that the
    one-side mask keeps (Clip-Cov). What is drawn depends on the gradient step alone.

    Raises ValueError unless 0 ≤ fraction ≤ 1 and above ≤ below; fraction 0 for none.
    """

    needs: ClassVar[Needs] = Needs(whole_batch=True)
    fraction: Share
    above: float
    below: float

    def __post_init__(self) -> None:
        if self.above > self.below:
            raise ValueError(f"above={self.above}: must be at most below={self.below}")

    def __call__(self, log_ratio_BT: Tensor, batch: LossInput) -> Tensor:
        import torch

        kept_BT = super().__call__(log_ratio_BT, batch)
        count = _count(self.fraction, batch)
        share_BT = covariance(batch)
        among_BT = batch.mask_BT & kept_BT & (share_BT > self.above) & (share_BT < self.below)
        among_N = among_BT.flatten().nonzero().flatten()
        order = rng.generator(0, rng.CLIP, batch.index.step).permutation(len(among_N))
        drawn_N = among_N[torch.from_numpy(order[:count]).to(among_N.device)]
        keep_N = kept_BT.flatten().clone()
        keep_N[drawn_N] = False
        return keep_N.view_as(kept_BT)

    def describe(self, ratio: str) -> str:
        among = f"{self.above:g} < cov < {self.below:g} {COVARIANCE}"
        return (
            f"{super().describe(ratio)}; drops {self.fraction:g} of all tokens, drawn from those "
            f"with {among}"
        )


class CovariancePenalty(Piece):
    """beta |log π_θ/π_behavior| of the tokens with the largest shares of the covariance, a fraction
    of all, at least one (KL-Cov). Of equal shares the first, by row and position, is taken first.
    """

    needs: ClassVar[Needs] = Needs(whole_batch=True)
    fraction: Share
    beta: NonNegativeFloat

    def __call__(self, batch: LossInput) -> Tensor | None:
        live_N = batch.mask_BT.flatten().nonzero().flatten()
        share_N = covariance(batch).flatten()[live_N]
        descending_N = share_N.argsort(descending=True, stable=True)
        chosen_N = batch.mask_BT.new_zeros(batch.mask_BT.numel())
        chosen_N[live_N[descending_N[: _count(self.fraction, batch)]]] = True
        moved_BT = (batch.logp_BT - batch.logps["behavior"]).abs()
        return self.beta * moved_BT.where(chosen_N.view_as(moved_BT), 0.0)

    def describe(self) -> str:
        return (
            f"{self.beta:g} · |log π_θ/π_behavior| of the {self.fraction:g} of all tokens with the "
            f"largest cov {COVARIANCE}"
        )


def covariance(batch: LossInput) -> Tensor:
    """Each live token's share, B x T in float64, without gradient; 0 elsewhere."""
    mask_BT = batch.mask_BT
    count = mask_BT.sum().clamp(min=1)
    advantage_BT = batch.advantages.advantage_B[:, None] * mask_BT
    logp_BT = batch.logp_BT.detach().double().where(mask_BT, 0.0)
    above_BT = advantage_BT - advantage_BT.sum() / count
    likely_BT = logp_BT - logp_BT.sum() / count
    return (above_BT * likely_BT).where(mask_BT, 0.0)


def _count(fraction: float, batch: LossInput) -> int:
    """A fraction of the live tokens, rounded down, but at least one."""
    return max(1, int(fraction * int(batch.mask_BT.sum()))) if fraction > 0 else 0
