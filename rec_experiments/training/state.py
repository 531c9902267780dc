"""Everything a run needs to continue: from live objects to a state, and back."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers import PreTrainedModel

from rec_experiments.common.batch import Rollouts
from rec_experiments.common.distributed import World, copied_to_host, split_like
from rec_experiments.common.errors import first_line
from rec_experiments.policy.lora import Base, state_of
from rec_experiments.rollout.manager import RolloutManager
from rec_experiments.training.protocol import State, foreign
from rec_experiments.training.updates import Policies


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingState:
    """The objects that training changes."""

    model: PreTrainedModel
    optimizer: torch.optim.Optimizer
    policies: Policies
    rollouts: RolloutManager
    world: World

    def state(self, step: int, batch: Rollouts | None) -> State:
        """The state after `step` gradient steps; batch: the one in use, if any. It holds references
        to the live weights: save it before the next step.

        state["weights"] holds all tensors that may be split among the ranks; all else is the same
        on every rank. Where batches are drawn by the policy itself, a file holds its weights once.
        """
        assert self.rollouts.behavior is not None
        optimizer, model = self.optimizer.state_dict(), state_of(self.model)
        behavior = self.rollouts.behavior
        return {
            "step": step,
            "weights": {
                "model": model,
                "optimizer": optimizer["state"],
                "policies": self.policies.state(),
                "behavior": model if behavior.version == step else behavior.weights,
                "earlier": {n: each.weights for n, each in self.rollouts.earlier.items()},
            },
            "param_groups": optimizer["param_groups"],
            "rollouts": self.rollouts.state(),
            "batch": batch.state() if batch else None,
        }

    def restore(self, state: State) -> tuple[int, Rollouts | None]:
        """The inverse of `state`, with this rank's rows of each weight."""
        weights, live = state["weights"], self.model.state_dict()

        def split(rows: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: split_like(live[name], tensor) for name, tensor in rows.items()}

        frozen = {} if (base := Base.of(self.model)) is None else live
        self.model.load_state_dict({**frozen, **split(weights["model"])})
        parameters = [each for group in self.optimizer.param_groups for each in group["params"]]
        moments = {
            number: {key: split_like(parameters[number], value) for key, value in of_one.items()}
            for number, of_one in weights["optimizer"].items()
        }
        restore_optimizer(self.optimizer, {"state": moments, "param_groups": state["param_groups"]})
        self.policies.restore({role: split(rows) for role, rows in weights["policies"].items()})
        earlier = {n: split(rows) for n, rows in weights.get("earlier", {}).items()}
        self.rollouts.restore(state["rollouts"], split(weights["behavior"]), earlier, base)
        batch = state["batch"] and Rollouts(**copied_to_host(state["batch"]))
        return state["step"], batch


def restore_optimizer(optimizer: torch.optim.Optimizer, state: State) -> None:
    """`load_state_dict` with copies of the tensors, and `state` emptied to save memory.

    Torch would keep tensors that are already on the right device. Those of a checkpoint are mapped
    from its file: the file could not be deleted, and a change to it would change the run.
    """
    optimizer.load_state_dict(state)
    state["state"].clear()
    for parameter, of_parameter in optimizer.state.items():
        optimizer.state[parameter] = tree_map_only(Tensor, Tensor.clone, of_parameter)


@contextlib.contextmanager
def fitting(folder: Path, state: dict[str, Any], steps: int) -> Iterator[None]:
    """Restore inside: a state that does not fit the run is a UserError that names its folder."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise foreign(folder, first_line(error)) from error
    if state["step"] > steps:
        raise foreign(folder, f"the run ends after step {steps}")
