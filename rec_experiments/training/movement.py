"""How far the weights have moved from where they were, and moving them part of the way back."""

import torch
from torch import Tensor, nn

from rec_experiments.distributed import World, kept

Weights = dict[str, Tensor]


def copied(model: nn.Module) -> Weights:
    """The parameters as they are now, each rank's part of them."""
    return kept(dict(model.named_parameters()))


@torch.no_grad()
def relative_distance(model: nn.Module, start: Weights, world: World) -> float:
    """‖θ − θ_start‖ / ‖θ_start‖ over all parameters. Every rank must call it.

    start: the parameters by name, split among the ranks as the model is or whole on every rank, on
    any device.
    """
    squares = []
    for name, parameter in model.named_parameters():
        now = world.part(parameter)
        then = world.part(start[name]).to(now.device)
        norms = [torch.linalg.vector_norm(x, dtype=torch.float64) for x in (now - then, then)]
        squares.append(torch.stack(norms) ** 2)
    ours = torch.stack(squares).sum(0).cpu()
    moved, whole = torch.stack(world.gather(ours)).sum(0).sqrt().tolist()
    return moved / whole


@torch.no_grad()
def reposition(model: nn.Module, start: Weights, alpha: float) -> None:
    """θ ← θ_start + α (θ − θ_start), each rank its part: to the bit θ for α = 1, θ_start for 0."""
    for name, parameter in model.named_parameters():
        parameter.lerp_(start[name].to(parameter.device), 1 - alpha)
