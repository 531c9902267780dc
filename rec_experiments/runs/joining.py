"""A state in one piece, from what each rank has of it on disk."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rec_experiments.distributed import SHARD, World
from rec_experiments.errors import UserError, first_line
from rec_experiments.runs.checkpoints import UNREADABLE, Checkpoints, State, foreign


def read_joined(folder: Path, step: int | None) -> tuple[State, list[str]]:
    """The model's weights and the step of a run's newest state that is whole, or of the one after
    `step` gradient steps, in one piece, on the host; and the names of newer ones that are damaged.
    folder: the run's checkpoints.

    Raises UserError if there is none, the one that was asked for is damaged, or it is not of a run.
    """
    states = Checkpoints(folder, World())
    there = states.steps()
    if not there:
        raise UserError(f"{folder}: holds no checkpoint")
    if step is not None and step not in there:
        raise UserError(f"step={step}: has no checkpoint; allowed: {', '.join(map(str, there))}")
    damaged: list[str] = []
    for wanted in there if step is None else [step]:
        if parts := states.parts(wanted):
            try:
                model = joined([part["model"] for part in parts])
            except UNREADABLE as error:
                raise foreign(states.of(wanted), first_line(error)) from error
            return {"step": wanted, "model": model}, damaged
        damaged.append(states.of(wanted).name)
    other = "there is no other one" if step is None else "was asked for"
    raise UserError(f"{folder}: {', '.join(damaged)}: damaged, and {other}")


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
