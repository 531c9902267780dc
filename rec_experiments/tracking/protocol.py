"""What a choice of tracking offers, and the tracker that it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    def log(self, row: dict[str, Any]) -> None:
        """One row of metrics.jsonl."""

    def finish(self, picture: Path | None = None, failed: bool = False) -> list[str]:
        """The run is over. picture: its curves. Returns lines for people: what is left to do."""


class Tracking(Protocol):
    def start(self, name: str, group: str, folder: str, config: dict[str, Any]) -> Tracker:
        """Begin to track a run, or go on with it."""
