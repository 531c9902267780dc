"""The parts of an update: the groups of its mini-batch, the optimizer, and the frozen policies that
follow the trained one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from rec_experiments.common import rng
from rec_experiments.common.batch import StepIndex
from rec_experiments.common.distributed import whole
from rec_experiments.common.pieces import Piece
from rec_experiments.training.policies import Proximal, Reference
from rec_experiments.training.protocol import State

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from transformers import PreTrainedModel

Beta = Annotated[float, Field(ge=0, lt=1)]


class Updates(Piece):
    """epochs: passes over each batch. mini_batches: gradient steps in each pass. shuffle: whether
    each pass assigns groups to mini-batches in a random order.
    """

    epochs: PositiveInt
    mini_batches: PositiveInt
    shuffle: bool

    @property
    def per_batch(self) -> int:
        """Gradient steps on one batch."""
        return self.epochs * self.mini_batches

    def batches(self, updates: int) -> int:
        """The most batches that this many gradient steps can use."""
        return -(-updates // self.per_batch)

    def index_of(self, update: int) -> StepIndex:
        """Gradient step number `update`, counted from 0."""
        batch, rest = divmod(update, self.per_batch)
        return StepIndex(batch, *divmod(rest, self.mini_batches), update)

    def groups(self, index: StepIndex, groups: int, seed: int) -> list[int]:
        """Which of a batch's groups are in the mini-batch of `index`, in order."""
        order = range(groups)
        if self.shuffle and self.mini_batches > 1:
            named = rng.generator(seed, rng.PARTS, index.batch, index.epoch)
            order = named.permutation(groups).tolist()
        start, end = (
            groups * n // self.mini_batches for n in (index.mini_batch, index.mini_batch + 1)
        )
        return sorted(order[start:end])

    def describe(self) -> str:
        if self.per_batch == 1:
            return "one gradient step per batch"
        return (
            f"{self.per_batch} gradient steps per batch: {self.epochs} epochs x "
            f"{self.mini_batches} mini-batches"
        )


@runtime_checkable
class Optimizer(Protocol):
    """A choice of the group `optimizer`."""

    def build(self, model: nn.Module) -> torch.optim.Optimizer: ...

    def rate(self, step: int) -> float:
        """Learning rate of gradient step number `step`, counted from 0."""

    def step(self, optimizer: torch.optim.Optimizer, model: nn.Module, step: int) -> float | Tensor:
        """Take the step and clear the gradient. Returns the gradient's norm before clipping."""

    def describe(self) -> str:
        """A one-line description."""


class AdamW(Piece):
    """learning_rate: after warm-up. warmup_steps: gradient steps of linear warm-up, 0 for none.
    max_grad_norm: the gradient is scaled down to this norm.
    """

    learning_rate: PositiveFloat
    betas: Annotated[list[Beta], Field(min_length=2, max_length=2)]
    weight_decay: NonNegativeFloat
    warmup_steps: NonNegativeInt
    max_grad_norm: Annotated[float, Field(gt=0, allow_inf_nan=True)]

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        import torch

        # Other implementations make temporary copies and are slower on a CPU.
        return self.built(torch.optim.AdamW, model, fused=True)

    def built(self, kind: Any, model: nn.Module, **more: Any) -> torch.optim.Optimizer:
        """An optimizer of this class for the parameters that are trained."""
        trained = [each for each in model.parameters() if each.requires_grad]
        optimizer: torch.optim.Optimizer = kind(
            trained,
            lr=self.learning_rate,
            betas=tuple(self.betas),
            weight_decay=self.weight_decay,
            **more,
        )
        return optimizer

    def rate(self, step: int) -> float:
        """Learning rate of gradient step number `step`, counted from 0."""
        return self.learning_rate * min(1.0, (step + 1) / max(1, self.warmup_steps))

    def step(self, optimizer: torch.optim.Optimizer, model: nn.Module, step: int) -> Tensor:
        """Clip the gradient, set the learning rate, step, clear the gradient."""
        from torch.nn.utils import clip_grad_norm_

        norm = clip_grad_norm_(model.parameters(), self.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = self.rate(step)
        optimizer.step()
        optimizer.zero_grad()  # frees the gradient's memory
        return whole(norm)

    def describe(self) -> str:
        warm = f", {self.warmup_steps} warm-up steps" if self.warmup_steps else ""
        return (
            f"AdamW, learning rate {self.learning_rate:g}{warm}, weight decay {self.weight_decay:g}"
        )


class AdamW8bit(AdamW):
    """AdamW with moments of 8 bits, each block of 256 with a scale of its own (arXiv 2110.02861,
    bitsandbytes). Weights of fewer than 4,096 numbers have moments of 32 bits. One rank only."""

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        import logging

        # On a CPU its import warns of a package for layers of 4 bits.
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
        from bitsandbytes.optim import AdamW8bit as Quantized

        return self.built(Quantized, model)

    def describe(self) -> str:
        return f"{super().describe()}, moments of 8 bits"


@dataclass(kw_only=True)
class Policies:
    """The frozen models by role, and how they change. A model exists only if a piece of the
    algorithm or a metric reads it.

    proximal: None if no piece reads that policy.
    """

    proximal: Proximal | None
    reference: Reference
    models: dict[str, PreTrainedModel]

    def begin_batch(self, batch: int, policy: nn.Module) -> None:
        if "reference" in self.models and self.reference.is_due(batch):
            self.models["reference"].load_state_dict(policy.state_dict())

    def after_update(self, policy: nn.Module) -> None:
        if "proximal" in self.models:
            assert self.proximal is not None
            self.proximal.move(self.models["proximal"], policy)

    def state(self) -> State:
        """The weights of models that have changed; the others equal the initial model."""
        changed = {role for role in self.models if role != "reference" or self.reference.swap_every}
        return {role: self.models[role].state_dict() for role in sorted(changed)}

    def restore(self, state: State) -> None:
        for role, weights in state.items():
            self.models[role].load_state_dict(weights)
