"""What the core asks of a choice of model, sampler, pipeline, optimizer and tracking.

Whatever class a package registers for one of these slots offers this. The slots of a method have
their protocols beside their pieces, `dataset` has `types.Task`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rec_experiments.types import Sampler

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from rec_experiments.rollout.worker import LocalWorker, RolloutWorker, Weights


class ModelChoice(Protocol):
    """compute_dtype: of forward and backward pass; float32 for that of the weights."""

    @property
    def compute_dtype(self) -> str: ...

    def tokenizer(self) -> PreTrainedTokenizerFast: ...

    def model(self) -> PreTrainedModel:
        """A new one. Raises UserError for what the user can mend."""

    def describe(self) -> str:
        """The model, for people."""


class SamplerChoice(Protocol):
    """temperature, eval_temperature: of training and of evaluation; 0 is greedy."""

    temperature: float
    eval_temperature: float

    def bundle(self, model: PreTrainedModel, tokens: int) -> int:
        """How many batches of one version it is best given at once, at least 1. tokens: the most
        that a batch can have, prompts included."""

    def build(
        self,
        model: PreTrainedModel,
        eos_ids: list[int],
        pad_id: int,
        max_prompt_tokens: int,
        max_response_tokens: int,
    ) -> Sampler: ...


class Pipeline(Protocol):
    def check(self, device: torch.device, ranks: int) -> None:
        """Raise UserError if it does not go with the run's device."""

    def start(
        self,
        here: Callable[[], LocalWorker],
        elsewhere: Callable[[], LocalWorker],
        weights: Weights,
        ranks: int,
    ) -> RolloutWorker:
        """Start what draws. here, elsewhere: make a worker in this process, or in another.
        weights: the layout of all to come. ranks: processes that train."""

    def describe(self) -> str:
        """Where batches are drawn, for people."""


class Optimizer(Protocol):
    def build(self, model: nn.Module) -> torch.optim.Optimizer: ...

    def rate(self, step: int) -> float:
        """Learning rate of gradient step number `step`, counted from 0."""

    def step(self, optimizer: torch.optim.Optimizer, model: nn.Module, step: int) -> float | Tensor:
        """Take it and clear the gradient. Returns the gradient's norm before clipping."""

    def describe(self) -> str:
        """For people."""


class Tracker(Protocol):
    def log(self, row: dict[str, Any]) -> None:
        """One row of metrics.jsonl."""

    def finish(self, picture: Path | None = None, failed: bool = False) -> list[str]:
        """The run is over. picture: its curves. Returns lines for people: what is left to do."""


class Tracking(Protocol):
    def start(self, name: str, group: str, folder: str, config: dict[str, Any]) -> Tracker:
        """Begin to track a run, or go on with it."""
