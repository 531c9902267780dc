"""The policies beside the one that is trained, by role: what each one is, and how it moves.

A policy is there only if a piece of the algorithm, or a metric, asks for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rec_experiments.distributed import memory_of
from rec_experiments.types import LossInput, Piece, StepIndex

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from transformers import PreTrainedModel


@dataclass(kw_only=True)
class Proximal(Piece):
    """The policy that a trust region is built around; a rule for one derives from this.

    of_batch: its log-probabilities are taken once, from the policy at the start of a batch of
    several updates. of_versions: they follow from the version that drew each row. has_weights: it
    is a model of its own, made as a copy of the initial one.
    """

    of_batch: ClassVar[bool] = False
    of_versions: ClassVar[bool] = False
    has_weights: ClassVar[bool] = False

    def move(self, proximal: nn.Module, policy: nn.Module) -> None:
        """After an update: change the weights of `proximal`, where the rule has any."""

    def logp(self, batch: LossInput) -> Tensor:
        """log π_prox, B x T, without gradient, where no model and no batch gives it: of the policy
        itself, as it is at the first update on a batch."""
        return batch.logp_BT.detach()

    def describe(self) -> str:
        """For people."""
        return type(self).__name__


@dataclass(kw_only=True)
class BatchStart(Proximal):
    """The policy as it was before the first update on a batch (decoupled PPO as AReaL runs it)."""

    of_batch: ClassVar[bool] = True

    def describe(self) -> str:
        return "the policy before the first update on a batch"


@dataclass(kw_only=True)
class Interpolated(Proximal):
    """log π_prox = log π_b + α (log π_θ − log π_b), α = (v_prox − v_b)/(v_θ − v_b), without a
    forward pass (A-3PO, arXiv 2512.06547). v_θ and v_b: gradient steps that the policy and the
    behavior policy of a row have taken; v_prox = max(v_b, v_θ − lag). α = 0 where v_θ = v_b.

    lag: gradient steps by which the proximal policy is behind. Raises ValueError for lag < 1.
    """

    of_versions: ClassVar[bool] = True
    lag: int

    def __post_init__(self) -> None:
        if self.lag < 1:
            raise ValueError(f"lag={self.lag}: must be at least 1")

    def logp(self, batch: LossInput) -> Tensor:
        behavior_BT = batch.logps["behavior"]
        staleness_B = (batch.index.step - batch.versions_B).to(behavior_BT.dtype)
        share_B = (staleness_B - self.lag).clamp(min=0) / staleness_B.clamp(min=1)
        return behavior_BT + share_B[:, None] * (batch.logp_BT.detach() - behavior_BT)

    def describe(self) -> str:
        return f"between behavior policy and policy, {self.lag} gradient steps behind it"


@dataclass(kw_only=True)
class MovingAverage(Proximal):
    """θ_prox ← decay · θ_prox + (1 − decay) · θ after every update (PPO-EWMA, arXiv 2110.00641).

    Raises ValueError unless 0 ≤ decay < 1.
    """

    has_weights: ClassVar[bool] = True
    decay: float

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay={self.decay}: must be at least 0 and below 1")

    def move(self, proximal: nn.Module, policy: nn.Module) -> None:
        import torch

        with torch.no_grad():
            for mine, theirs in zip(proximal.parameters(), policy.parameters(), strict=True):
                mine.lerp_(theirs, 1 - self.decay)

    def describe(self) -> str:
        return f"a moving average of the weights, decay {self.decay:g}"


@dataclass(kw_only=True)
class Reference(Piece):
    """The policy that a penalty pulls to, and that train/kl is measured to: the initial model, or
    the policy as it was at the last swap.

    swap_every: batches between two swaps; None for never. Raises ValueError for a number below 1.
    """

    resets_optimizer: ClassVar[bool] = False
    swap_every: int | None

    def __post_init__(self) -> None:
        if self.swap_every is not None and self.swap_every < 1:
            raise ValueError(f"swap_every={self.swap_every}: must be at least 1, or null for never")

    def is_due(self, batch: int) -> bool:
        """Whether the policy before this batch becomes the reference."""
        return self.swap_every is not None and batch > 0 and batch % self.swap_every == 0

    def describe(self) -> str:
        if self.swap_every is None:
            return "the initial model"
        return f"swapped to the policy every {self.swap_every} batches"


@dataclass(kw_only=True)
class StagedReference(Reference):
    """A reference whose swap begins a stage: the optimizer starts anew with it, as if the policy
    were trained by another run that begins there (arXiv 2505.22257, Algorithm 1)."""

    resets_optimizer: ClassVar[bool] = True

    def describe(self) -> str:
        return super().describe() + ", where the optimizer starts anew"


@contextlib.contextmanager
def on_device(
    model: PreTrainedModel, device: torch.device | str, compute_dtype: torch.dtype
) -> Iterator[None]:
    """Within, a frozen model that waits on the host computes on `device`; its weights stay on the
    host as well, so that nothing need be brought back.

    Those of linear layers come in the dtype that these compute in, which autocast would give them
    anyway: the same bits in less memory.
    """
    import torch
    from torch import nn

    waiting = model.state_dict()
    if next(iter(waiting.values())).device.type == torch.device(device).type:
        yield
        return
    linear = {
        f"{name}.weight": compute_dtype
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not model.get_output_embeddings()
        if compute_dtype.itemsize < module.weight.dtype.itemsize  # float32 leaves any dtype
    }
    copies: dict[Any, Tensor] = {}  # tied weights are one
    for name, weight in waiting.items():
        if (memory := memory_of(weight)) not in copies:
            copies[memory] = weight.to(linear.get(name, weight.dtype)).to(device)
    there = {name: copies[memory_of(weight)] for name, weight in waiting.items()}
    del copies
    model.load_state_dict(there, assign=True)
    del there
    try:
        yield
    finally:
        model.load_state_dict(waiting, assign=True)


@dataclass(kw_only=True)
class Policies:
    """The models beside the one that is trained, by role, each moved as its rule says.

    The proximal rule is None where no piece needs that policy.
    """

    proximal: Proximal | None
    reference: Reference
    models: dict[str, PreTrainedModel]

    def begin_batch(self, index: StepIndex, policy: nn.Module) -> None:
        if "reference" in self.models and self.reference.is_due(index.batch):
            self.models["reference"].load_state_dict(policy.state_dict())

    @contextlib.contextmanager
    def at_hand(
        self, roles: Iterable[str], device: torch.device | str, compute_dtype: torch.dtype
    ) -> Iterator[None]:
        """Within, the models of these roles compute on `device`, wherever they wait."""
        with contextlib.ExitStack() as hands:
            for role in roles:
                hands.enter_context(on_device(self.models[role], device, compute_dtype))
            yield

    def after_update(self, policy: nn.Module) -> None:
        if "proximal" in self.models:
            assert self.proximal is not None
            self.proximal.move(self.models["proximal"], policy)

    def state(self) -> dict[str, Any]:
        """The weights of those that have moved; the initial model can be made again."""
        moved = {role for role in self.models if role != "reference" or self.reference.swap_every}
        return {role: self.models[role].state_dict() for role in sorted(moved)}

    def restore(self, state: dict[str, Any]) -> None:
        for role, weights in state.items():
            self.models[role].load_state_dict(weights)
