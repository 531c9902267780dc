"""The policies that are not trained: rules for the proximal and for the reference policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field, PositiveInt

from rec_experiments.algo.inputs import LossInput
from rec_experiments.common.pieces import Piece

if TYPE_CHECKING:
    from torch import Tensor, nn


class Proximal(Piece):
    """The center of the trust region. Rules for it derive from this class.

    of_batch: its log-probabilities are computed once per batch, by the policy before the first of
    several updates. of_versions: they are computed from the version that drew each row.
    has_weights: it is a separate model, initially a copy of the policy.
    """

    of_batch: ClassVar[bool] = False
    of_versions: ClassVar[bool] = False
    has_weights: ClassVar[bool] = False

    def move(self, proximal: nn.Module, policy: nn.Module) -> None:
        """Change the weights of `proximal` after an update of the policy."""

    def logp(self, batch: LossInput) -> Tensor:
        """log π_prox, B x T, without gradient, if neither a model nor the batch provides it. By
        default that of the policy itself, which is right at the first update on a batch."""
        return batch.logp_BT.detach()


class BatchStart(Proximal):
    """The policy before the first update on a batch (decoupled PPO as in AReaL)."""

    formula = "the policy before the first update on a batch"

    of_batch: ClassVar[bool] = True


class Interpolated(Proximal):
    """log π_prox = log π_b + α (log π_θ − log π_b), α = (v_prox − v_b)/(v_θ − v_b), without a
    forward pass (A-3PO, arXiv 2512.06547). v_θ and v_b: number of gradient steps of the policy and
    of a row's behavior policy; v_prox = max(v_b, v_θ − lag). α = 0 if v_θ = v_b.

    lag: gradient steps by which the proximal policy is behind.
    """

    formula = "between behavior policy and policy, {lag} gradient steps behind it"

    of_versions: ClassVar[bool] = True
    lag: PositiveInt

    def logp(self, batch: LossInput) -> Tensor:
        behavior_BT = batch.logps["behavior"]
        age_BX = batch.age_BX.to(behavior_BT.dtype)
        share_BX = (age_BX - self.lag).clamp(min=0) / age_BX.clamp(min=1)
        return behavior_BT + share_BX * (batch.logp_BT.detach() - behavior_BT)


class MovingAverage(Proximal):
    """θ_prox ← decay · θ_prox + (1 − decay) · θ after every update (PPO-EWMA, arXiv 2110.00641)."""

    formula = "a moving average of the weights, decay {decay:g}"

    has_weights: ClassVar[bool] = True
    decay: Annotated[float, Field(ge=0, lt=1)]

    def move(self, proximal: nn.Module, policy: nn.Module) -> None:
        for mine, theirs in zip(proximal.parameters(), policy.parameters(), strict=True):
            mine.detach().lerp_(theirs.detach(), 1 - self.decay)


class Reference(Piece):
    """The policy of KL penalties and of train/kl: the initial model, or the policy at the last
    swap.

    swap_every: batches between two swaps; None for never.
    """

    resets_optimizer: ClassVar[bool] = False
    swap_every: PositiveInt | None

    def is_due(self, batch: int) -> bool:
        """Whether the policy becomes the reference before this batch."""
        return self.swap_every is not None and batch > 0 and batch % self.swap_every == 0

    def describe(self) -> str:
        if self.swap_every is None:
            return "the initial model"
        return f"swapped to the policy every {self.swap_every} batches"


class Teacher(Reference):
    """Another model, which stays as it is: what algo=opd distills.

    path: a run folder, whose newest checkpoint it is, or a model of transformers.
    """

    swap_every: None
    path: str

    def describe(self) -> str:
        return f"the teacher {self.path}"


class StagedReference(Reference):
    """Each swap also resets the optimizer, as if a new run started from the current policy
    (arXiv 2505.22257, Algorithm 1)."""

    resets_optimizer: ClassVar[bool] = True

    def describe(self) -> str:
        return super().describe() + ", which resets the optimizer"
