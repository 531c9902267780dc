"""Weights of a model: copies, distances, and where they are kept."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rec_experiments.common.distributed import World, copied_to_host, memory_of
from rec_experiments.policy.lora import trained

Weights = dict[str, Tensor]


def copied(model: nn.Module) -> Weights:
    """A copy of the parameters that training changes, of each rank's part of them."""
    return copied_to_host(trained(model))


@torch.no_grad()
def relative_distance(model: nn.Module, start: Weights, world: World) -> float:
    """‖θ − θ_start‖ / ‖θ_start‖ over the parameters that training changes. Every rank must
    call it.

    start: the parameters by name, on any device, either split among the ranks as the model is or
    whole on every rank.
    """
    squares = []
    for name, parameter in trained(model).items():
        now = world.part(parameter)
        then = world.part(start[name]).to(now.device)
        norms = [torch.linalg.vector_norm(x, dtype=torch.float64) for x in (now - then, then)]
        squares.append(torch.stack(norms) ** 2)
    ours = torch.stack(squares).sum(0).cpu()
    moved, whole = torch.stack(world.gather(ours)).sum(0).sqrt().tolist()
    return moved / whole


@contextlib.contextmanager
def on_device(
    models: Iterable[PreTrainedModel], device: torch.device | str, compute_dtype: torch.dtype
) -> Iterator[None]:
    """Inside, these frozen models compute on `device`. Those kept on the host get a copy of their
    weights there, which is dropped at the end.

    The copy of a linear layer has the dtype it computes in, which autocast would convert it to
    anyway: the same bits in less memory.
    """
    with contextlib.ExitStack() as stack:
        for model in models:
            stack.enter_context(_on_device(model, torch.device(device), compute_dtype))
        yield


@contextlib.contextmanager
def _on_device(
    model: PreTrainedModel, device: torch.device, compute_dtype: torch.dtype
) -> Iterator[None]:
    on_host = model.state_dict()
    if next(iter(on_host.values())).device.type == device.type:
        yield
        return
    linear = {
        f"{name}.weight": compute_dtype
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not model.get_output_embeddings()
        if compute_dtype.itemsize < module.weight.dtype.itemsize  # float32 leaves any dtype
    }
    copies: dict[Any, Tensor] = {}  # tied weights share one
    for name, weight in on_host.items():
        if (memory := memory_of(weight)) not in copies:
            copies[memory] = weight.to(linear.get(name, weight.dtype)).to(device)
    there = {name: copies[memory_of(weight)] for name, weight in on_host.items()}
    del copies
    model.load_state_dict(there, assign=True)
    del there
    try:
        yield
    finally:
        model.load_state_dict(on_host, assign=True)
