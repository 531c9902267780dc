"""All that a run needs to go on, as a tree of plain values and tensors, and how it is put back."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from rec_experiments.distributed import World, is_split, pack
from rec_experiments.errors import first_line
from rec_experiments.rollout import packed
from rec_experiments.rollout.manager import RolloutManager
from rec_experiments.runs.checkpoints import State, foreign
from rec_experiments.training.optimizers import restore
from rec_experiments.training.policies import Policies
from rec_experiments.training.protocol import UpdateHook
from rec_experiments.training.resplit import resplit
from rec_experiments.types import Rollouts


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What training changes, each rank's part of it."""

    model: PreTrainedModel
    optimizer: torch.optim.Optimizer
    policies: Policies
    hook: UpdateHook | None
    feed: RolloutManager
    world: World

    def state(self, step: int, batch: Rollouts | None) -> State:
        """After `step` gradient steps; batch: what the next one trains on, if it has begun. Not a
        copy: save it before the next step."""
        state = {
            "step": step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "policies": self.policies.state(),
            "hook": self.hook.state() if self.hook else {},
            "feed": self.feed.state(),
            "batch": packed.pack(batch) if batch else None,
        }
        return pack(state)

    def restore(self, state: State) -> tuple[int, Rollouts | None]:
        """The inverse of `state`."""
        state = self.world.unpack(state)
        self.model.load_state_dict(state["model"])
        restore(self.optimizer, state["optimizer"])
        self.policies.restore(state["policies"])
        if self.hook:
            self.hook.restore(state["hook"])
        self.feed.restore(state["feed"])
        return state["step"], packed.unpack(state["batch"]) if state["batch"] else None

    def resplit(self, parts: list[State]) -> State:
        """This rank's part of a state that another number of ranks wrote."""
        split = {name for name, weight in self.model.state_dict().items() if is_split(weight)}
        return resplit(parts, self.world, split)


@contextlib.contextmanager
def fitting(folder: Path, state: dict[str, Any], steps: int) -> Iterator[None]:
    """Within, a state that is not one of this run's is a UserError that names its folder."""
    step = state.get("step", 0)
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise foreign(folder, first_line(error)) from error
    if step > steps:
        raise foreign(folder, f"the run ends after step {steps}")
