"""A state in one piece, from what each rank has of it on disk."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rec_experiments.distributed import SHARD, World
from rec_experiments.errors import UserError
from rec_experiments.records.checkpoints import Checkpoints, State


def read_joined(folder: Path, ranks: int, step: int | None) -> State:
    """The model's weights and the step of a run's newest state, or of the one after `step` gradient
    steps, whole, on the host. folder: the run's checkpoints. ranks: that wrote them.

    Raises UserError if there is none, or it is damaged on a rank.
    """
    there = Checkpoints(folder, World()).steps()
    if not there:
        raise UserError(f"{folder}: holds no checkpoint")
    wanted = there[0] if step is None else step
    if wanted not in there:
        raise UserError(f"step={wanted}: has no checkpoint; allowed: {', '.join(map(str, there))}")
    parts = []
    for rank in range(ranks):
        state = Checkpoints(folder, World(rank, ranks)).read(wanted)
        if state is None:
            raise UserError(f"{folder}: the state after step {wanted} is damaged on rank {rank}")
        parts.append(state["model"])
    return {"step": wanted, "model": joined(parts)}


def joined(parts: Sequence[Any]) -> Any:
    """Trees that `distributed.pack` made on each rank, as one whose tensors are whole. What is not
    split is the first rank's."""
    first = parts[0]
    if not isinstance(first, dict):
        return first
    if SHARD not in first:
        return {key: joined([part[key] for part in parts]) for key in first}
    import torch

    whole = torch.cat([part[SHARD] for part in parts])  # split along the first dimension
    if tuple(whole.shape) != tuple(first["shape"]):
        raise UserError(
            f"a checkpoint has {tuple(whole.shape)} of {tuple(first['shape'])}: a rank is missing"
        )
    return whole
