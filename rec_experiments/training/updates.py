"""How a batch is cut into updates: epochs over it, each in mini-batches of whole groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rec_experiments import rng
from rec_experiments.types import Piece, StepIndex

if TYPE_CHECKING:
    from torch import nn


@dataclass(kw_only=True)
class Updates(Piece):
    """epochs: passes over each batch. mini_batches: gradient steps in each pass. shuffle: whether a
    pass deals the groups to its mini-batches in an order of its own.

    Raises ValueError for a number below 1.
    """

    epochs: int
    mini_batches: int
    shuffle: bool

    def __post_init__(self) -> None:
        for name in ("epochs", "mini_batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")

    @property
    def per_batch(self) -> int:
        """Gradient steps that a batch is good for."""
        return self.epochs * self.mini_batches

    def batches(self, updates: int) -> int:
        """The most batches that so many gradient steps can begin."""
        return -(-updates // self.per_batch)

    def index_of(self, update: int) -> StepIndex:
        """Gradient step number `update`, counted from 0."""
        batch, rest = divmod(update, self.per_batch)
        return StepIndex(batch, *divmod(rest, self.mini_batches), update)

    def groups(self, index: StepIndex, groups: int, seed: int) -> list[int]:
        """Which of a batch's groups the mini-batch of `index` holds, in order."""
        order = range(groups)
        if self.shuffle and self.mini_batches > 1:
            named = rng.generator(seed, rng.PARTS, index.batch, index.epoch)
            order = named.permutation(groups).tolist()
        start, end = (
            groups * n // self.mini_batches for n in (index.mini_batch, index.mini_batch + 1)
        )
        return sorted(order[start:end])

    def course(self) -> Course:
        """The way of a run through its batches, from its beginning."""
        return Course(self)

    def describe(self) -> str:
        if self.per_batch == 1:
            return "one gradient step a batch"
        return (
            f"{self.per_batch} gradient steps a batch: {self.epochs} epochs x "
            f"{self.mini_batches} mini-batches"
        )


class Course:
    """The way of one run through its batches: which update comes when, and what moves the weights
    beside gradient steps. Here nothing does, so there is nothing to keep."""

    def __init__(self, updates: Updates):
        self.updates = updates

    def index_of(self, update: int) -> StepIndex:
        """Gradient step number `update`, counted from 0, after those that were taken so far."""
        return self.updates.index_of(update)

    def before(self, index: StepIndex, model: nn.Module) -> dict[str, float]:
        """Before an update: may move the weights. Returns what belongs into its row of metrics."""
        return {}

    def after(self, index: StepIndex, row: dict[str, Any]) -> None:
        """After an update with this row of metrics."""

    def state(self) -> dict[str, Any]:
        """What a resumed run needs: plain values, and under "start" weights by name, not copies."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
