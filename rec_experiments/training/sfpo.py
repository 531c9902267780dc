"""SFPO (Slow-Fast Policy Optimization, arXiv 2510.04072): fast steps on a batch, a move part of the
way back to where they started, and a slow step from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rec_experiments.distributed import copied_to_host
from rec_experiments.training.protocol import Row, State
from rec_experiments.training.updates import Updates
from rec_experiments.types import StepIndex, check_range, within

if TYPE_CHECKING:
    from torch import Tensor, nn

MIN_DEVIATION = 1e-9  # nats/token; as in the authors' code, so that rounding triggers nothing


@dataclass(kw_only=True)
class SlowFast(Updates):
    """All epochs but the last are the paper's K fast steps; the last epoch is its slow step. Before
    the slow step the weights are set to θ_0 + α (θ_K − θ_0), where θ_0 are the weights at the start
    of the batch. The optimizer's state is never reset.

    The fast steps stop for good after a batch whose entropy H has |H − μ| ≥ threshold · σ, where μ
    and σ are mean and deviation over the last `window` batches including this one (the paper's Z_s,
    τ and ω). From then on there is one epoch a batch. A batch's entropy is that of its last update.
    The paper sets α = 0 instead; as in the authors' code, the fast steps, which would then change
    only the optimizer's state, are skipped.

    alpha: in [0, 1]. window: batches. threshold: None for never. Raises ValueError for a single
    epoch, which leaves no fast step.
    """

    alpha: float = field(metadata=within(least=0, most=1))
    window: int = field(metadata=within(least=2))
    threshold: float | None = field(metadata=within(above=0, hint=", or null for never"))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self, "epochs", least=2, hint=", one fast and one slow")

    def batches(self, updates: int) -> int:
        first = self.window * self.per_batch  # the fast steps cannot stop earlier
        if self.threshold is None or updates <= first:
            return Updates.batches(self, updates)
        return self.window - (first - updates) // self.mini_batches

    def stops_after(self, entropies: Sequence[float]) -> bool:
        """Whether the last of these entropies stops the fast steps."""
        if self.threshold is None or len(entropies) < self.window:
            return False
        import numpy as np  # not on top: --help would take a tenth of a second more

        last = np.array(entropies[-self.window :])
        deviation = last.std() + MIN_DEVIATION
        return bool(abs(last[-1] - last.mean()) >= self.threshold * deviation)

    def hook(self) -> SlowFastHook:
        return SlowFastHook(self)

    def describe(self) -> str:
        until = ""
        if self.threshold is not None:
            until = (
                f"; one epoch per batch once the entropy is {self.threshold:g} standard deviations "
                f"from its mean over {self.window} batches"
            )
        return (
            f"{Updates.describe(self)}, {self.epochs - 1} fast and one slow, which starts at "
            f"θ_0 + {self.alpha:g} (θ_{self.epochs - 1} − θ_0){until}"
        )


class SlowFastHook:
    """start: the weights at the start of the batch (each rank's part), until the slow step.
    entropies: of the last batches. stopped: number of gradient steps before the fast steps stopped.
    """

    def __init__(self, updates: SlowFast):
        self.updates = updates
        self.start: dict[str, Tensor] = {}
        self.entropies: list[float] = []
        self.stopped: int | None = None

    def index_of(self, update: int) -> StepIndex:
        if self.stopped is None or update < self.stopped:
            return self.updates.index_of(update)
        batches, part = divmod(update - self.stopped, self.updates.mini_batches)
        return StepIndex(self.stopped // self.updates.per_batch + batches, 0, part, update)

    def before_update(self, index: StepIndex, model: nn.Module) -> Row:
        if self.stopped is not None:
            return {"train/alpha": 0.0}
        if index.epoch == index.mini_batch == 0:
            from rec_experiments.training.weights import copied

            self.start = copied(model)
        elif index.epoch == self.updates.epochs - 1 and index.mini_batch == 0:
            move_back(model, self.start, self.updates.alpha)
            self.start = {}
        return {"train/alpha": self.updates.alpha}

    def after_update(self, index: StepIndex, row: Row) -> None:
        if self.stopped is not None or self.updates.index_of(index.step + 1).batch == index.batch:
            return
        self.entropies = [*self.entropies, row["train/entropy"]][-self.updates.window :]
        if self.updates.stops_after(self.entropies):
            self.stopped = index.step + 1

    def state(self) -> State:
        return {"start": self.start, "entropies": self.entropies, "stopped": self.stopped}

    def restore(self, state: State) -> None:
        self.start = copied_to_host(state["start"])  # of a checkpoint's mapped file
        self.entropies, self.stopped = state["entropies"], state["stopped"]


def move_back(model: nn.Module, start: dict[str, Tensor], alpha: float) -> None:
    """θ ← θ_start + α (θ − θ_start) on each rank's part; exactly θ for α = 1, θ_start for α = 0."""
    from rec_experiments.policy.lora import trained

    for name, parameter in trained(model).items():
        parameter.detach().lerp_(start[name].to(parameter.device), 1 - alpha)
