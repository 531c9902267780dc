"""AdamW with a constant learning rate after a linear warm-up (Tables 1 and 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from rec_experiments.common.distributed import whole
from rec_experiments.common.pieces import Piece
from rec_experiments.training.protocol import State

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Beta = Annotated[float, Field(ge=0, lt=1)]


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

        return torch.optim.AdamW(
            [each for each in model.parameters() if each.requires_grad],
            fused=True,  # other implementations make temporary copies and are slower on a CPU
            lr=self.learning_rate,
            betas=(self.betas[0], self.betas[1]),
            weight_decay=self.weight_decay,
        )

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

        optimizer: torch.optim.Optimizer = Quantized(
            [each for each in model.parameters() if each.requires_grad],
            lr=self.learning_rate,
            betas=(self.betas[0], self.betas[1]),
            weight_decay=self.weight_decay,
        )
        return optimizer

    def describe(self) -> str:
        return f"{super().describe()}, moments of 8 bits"


def restore(optimizer: torch.optim.Optimizer, state: State) -> None:
    """`load_state_dict` with copies of the tensors, and `state` emptied to save memory.

    Torch would keep tensors that are already on the right device. Those of a checkpoint are mapped
    from its file: the file could not be deleted, and a change to it would change the run.
    """
    from torch import Tensor
    from torch.utils._pytree import tree_map_only

    optimizer.load_state_dict(state)
    state["state"].clear()
    for parameter, of_parameter in optimizer.state.items():
        optimizer.state[parameter] = tree_map_only(Tensor, Tensor.clone, of_parameter)
