"""The interfaces of samplers and trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rec_experiments.common.batch import Responses, SampleKey, Tensor


class Sampler(Protocol):
    """Samples responses from a policy."""

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Use these weights from now on."""

    def sample(
        self, prompts: list[list[int]], draws: list[list[SampleKey]], temperature: float
    ) -> Responses:
        """One response per draw, prompt by prompt, in order, on the CPU. Temperature 0 is
        greedy."""


@runtime_checkable
class InFlightSampler(Sampler, Protocol):
    """A sampler whose weights may change while it writes."""

    def sample_in_flight(
        self,
        prompts: list[list[int]],
        draws: list[list[SampleKey]],
        temperature: float,
        policies: Sequence[tuple[int, Mapping[str, Tensor]]],
        keeps_cache: bool,
    ) -> Responses:
        """As `sample`, by several policies, each given by the first token that it samples (0 for
        the first policy) and its weights.

        keeps_cache: keep the keys and values of older policies, instead of computing them again.
        Afterwards it is undefined which weights are loaded.
        """


class Tracker(Protocol):
    def log(self, row: dict[str, Any]) -> None:
        """Log one row of metrics.jsonl."""

    def finish(self, picture: Path | None = None, failed: bool = False) -> list[str]:
        """End tracking. picture: the run's plot. Returns next steps for the user."""


@runtime_checkable
class Tracking(Protocol):
    def start(self, name: str, folder: Path, config: dict[str, Any]) -> Tracker:
        """Start or continue tracking a run. folder: of the run. config: its resolved values."""
