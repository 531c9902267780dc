"""The log-ratio that the clip and the importance weight use. B x T, without gradient."""

from typing import ClassVar, Protocol, runtime_checkable

from rec_experiments.algo.inputs import LossInput
from rec_experiments.common.batch import Tensor
from rec_experiments.common.pieces import Needs, Piece


@runtime_checkable
class Ratio(Protocol):
    def __call__(self, batch: LossInput) -> Tensor:
        """log-ratio of each live token, 0 elsewhere."""

    def describe(self) -> str:
        """The ratio as the formula writes it."""


class TokenRatio(Piece):
    """ρ = π_θ/π_old of each token, π_old being the policy that drew it."""

    formula = "ρ"

    def __call__(self, batch: LossInput) -> Tensor:
        return batch.log_ratio_BT()


class SequenceRatio(Piece):
    """s = (Π_t ρ_t)^(1/|y|), the same for all tokens of a sequence (GSPO, arXiv 2507.18071)."""

    formula = "s"

    def __call__(self, batch: LossInput) -> Tensor:
        length_B1 = batch.mask_BT.sum(1, keepdim=True).clamp(min=1)
        mean_B1 = batch.log_ratio_BT().sum(1, keepdim=True) / length_B1
        return mean_B1 * batch.mask_BT


class ProximalRatio(Piece):
    """u = π_θ/π_prox of each token (decoupled PPO, arXiv 2110.00641)."""

    formula = "u"

    needs: ClassVar[Needs] = Needs(logps=frozenset({"proximal"}))

    def __call__(self, batch: LossInput) -> Tensor:
        return batch.log_ratio_BT("proximal")
