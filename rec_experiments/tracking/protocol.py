"""The interface of the config group `tracking` and of the trackers that it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable


class Tracker(Protocol):
    def log(self, row: dict[str, Any]) -> None:
        """Log one row of metrics.jsonl."""

    def finish(self, picture: Path | None = None, failed: bool = False) -> list[str]:
        """End tracking. picture: the run's plot. Returns next steps for the user."""


@runtime_checkable
class Tracking(Protocol):
    def start(self, name: str, group: str, folder: str, config: dict[str, Any]) -> Tracker:
        """Start or continue tracking a run."""
