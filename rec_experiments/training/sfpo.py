"""SFPO (Slow-Fast Policy Optimization, arXiv 2510.04072): fast steps on a batch, part of the way
back, and a slow step from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rec_experiments.distributed import kept
from rec_experiments.training.updates import Course, Updates
from rec_experiments.types import StepIndex

if TYPE_CHECKING:
    from torch import nn

    from rec_experiments.training.movement import Weights

LEAST_DEVIATION = 1e-9  # nats/token; the authors' code adds it, so that no rounding is an event


@dataclass(kw_only=True)
class SlowFast(Updates):
    """All epochs but the last are the K fast steps of the paper, the last is its slow step; before
    it the weights go to θ_0 + α (θ_K − θ_0), θ_0 being where the batch began. The optimizer's state
    goes on through all of them.

    The fast steps end for good, and each batch is good for one epoch, after a batch whose entropy H
    has |H − μ| ≥ threshold · σ, μ and σ being mean and deviation of the last `window` batches, it
    included (the paper's Z_s, τ and ω). A batch's entropy is that of its last update. The paper
    writes α = 0 from there on; the fast steps, which then change the optimizer's state alone, are
    not taken, as in the authors' code.

    alpha: in [0, 1]. window: batches. threshold: None for never. Raises ValueError for a value out
    of range, and for a single epoch, which leaves no fast step.
    """

    alpha: float
    window: int
    threshold: float | None

    def __post_init__(self) -> None:
        Updates.__post_init__(self)
        if self.epochs < 2:
            raise ValueError(
                f"epochs={self.epochs}: must be at least 2, a fast one and the slow one"
            )
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha={self.alpha}: must be between 0 and 1")
        if self.window < 2:
            raise ValueError(f"window={self.window}: must be at least 2")
        if self.threshold is not None and not self.threshold > 0:
            raise ValueError(
                f"threshold={self.threshold}: must be greater than 0, or null for never"
            )

    def batches(self, updates: int) -> int:
        first = self.window * self.per_batch  # where the fast steps may end at the earliest
        if self.threshold is None or updates <= first:
            return Updates.batches(self, updates)
        return self.window - (first - updates) // self.mini_batches

    def ends(self, entropies: Sequence[float]) -> bool:
        """Whether the newest of these entropies ends the fast steps."""
        if self.threshold is None or len(entropies) < self.window:
            return False
        last = np.array(entropies[-self.window :])
        deviation = last.std() + LEAST_DEVIATION
        return bool(abs(last[-1] - last.mean()) >= self.threshold * deviation)

    def course(self) -> SlowFastCourse:
        return SlowFastCourse(self)

    def describe(self) -> str:
        until = ""
        if self.threshold is not None:
            until = (
                f"; one epoch a batch from where the entropy lies {self.threshold:g} deviations "
                f"off the mean of {self.window} batches"
            )
        return (
            f"{Updates.describe(self)}, {self.epochs - 1} fast and a slow one, which begins at "
            f"θ_0 + {self.alpha:g} (θ_{self.epochs - 1} − θ_0){until}"
        )


class SlowFastCourse(Course):
    """start: the weights at which the batch began, each rank's part, until the slow step begins.
    entropies: of the last batches. ended: gradient steps after which the fast ones have ended."""

    updates: SlowFast

    def __init__(self, updates: SlowFast):
        self.updates = updates
        self.start: Weights = {}
        self.entropies: list[float] = []
        self.ended: int | None = None

    def index_of(self, update: int) -> StepIndex:
        if self.ended is None or update < self.ended:
            return self.updates.index_of(update)
        batches, part = divmod(update - self.ended, self.updates.mini_batches)
        return StepIndex(self.ended // self.updates.per_batch + batches, 0, part, update)

    def before(self, index: StepIndex, model: nn.Module) -> dict[str, float]:
        from rec_experiments.training.movement import copied, reposition

        if self.ended is not None:
            return {"train/alpha": 0.0}
        if index.epoch == index.mini_batch == 0:
            self.start = copied(model)
        elif index.epoch == self.updates.epochs - 1 and index.mini_batch == 0:
            reposition(model, self.start, self.updates.alpha)
            self.start = {}
        return {"train/alpha": self.updates.alpha}

    def after(self, index: StepIndex, row: dict[str, Any]) -> None:
        if self.ended is not None or self.updates.index_of(index.step + 1).batch == index.batch:
            return
        self.entropies = [*self.entropies, row["train/entropy"]][-self.updates.window :]
        if self.updates.ends(self.entropies):
            self.ended = index.step + 1

    def state(self) -> dict[str, Any]:
        return {"start": self.start, "entropies": self.entropies, "ended": self.ended}

    def restore(self, state: dict[str, Any]) -> None:
        self.start = kept(state["start"])  # a checkpoint's lie in its file
        self.entropies, self.ended = state["entropies"], state["ended"]
