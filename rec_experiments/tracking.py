"""Where metrics go besides metrics.jsonl, which is always written."""

import os
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast, get_args

from rec_experiments.types import Piece

Mode = Literal["online", "offline", "disabled"]


class Tracker(Protocol):
    def log(self, row: dict[str, Any]) -> None:
        """One row of metrics.jsonl."""

    def finish(self) -> None:
        """The run is over."""


@dataclass(kw_only=True, slots=True)
class NoTracking(Piece):
    """metrics.jsonl only."""

    def start(self, name: str, group: str, folder: str, config: dict[str, Any]) -> Tracker:
        return _Silent()


@dataclass(kw_only=True, slots=True)
class Wandb(Piece):
    """Weights & Biases. mode: online, offline or disabled; null is online with a key, else offline.

    Raises ValueError for another mode.
    """

    project: str
    entity: str | None
    mode: str | None
    tags: list[str]

    def __post_init__(self) -> None:
        if self.mode not in (None, *get_args(Mode)):
            raise ValueError(f"mode={self.mode}: must be online, offline, disabled or null")

    def start(self, name: str, group: str, folder: str, config: dict[str, Any]) -> Tracker:
        import wandb  # heavy; only loaded when asked for

        has_key = bool(os.environ.get("WANDB_API_KEY") or wandb.api.api_key)
        run = wandb.init(
            project=self.project,
            entity=self.entity,
            name=name,
            group=group,
            job_type="train",
            tags=self.tags,
            dir=folder,
            config=config,
            mode=cast(Mode, self.mode or ("online" if has_key else "offline")),
        )
        return _WandbRun(run)


class _Silent:
    def log(self, row: dict[str, Any]) -> None:
        return None

    def finish(self) -> None:
        return None


class _WandbRun:
    def __init__(self, run: Any):
        self.run = run

    def log(self, row: dict[str, Any]) -> None:
        self.run.log({k: v for k, v in row.items() if k != "step"}, step=row["step"])

    def finish(self) -> None:
        self.run.finish()
