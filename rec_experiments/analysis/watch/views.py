"""The state of runs, from their folders."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rec_experiments.analysis.regime.alarms import ActiveAlarm, Alarm, active_alarms
from rec_experiments.analysis.results.runs import Row, points, read_run, run_folders
from rec_experiments.analysis.results.statistics import seconds
from rec_experiments.config.labels import run_label, run_labels
from rec_experiments.errors import UserError, first_line
from rec_experiments.runs.reading import Stamp, stamp
from rec_experiments.runs.run_folder import RunFolder, read_config

RECENT = 10  # steps to average over for current values
STALLED = 600.0  # seconds without a row until a run that no local process owns counts as stalled


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """The state of a run.

    name: its label. config: resolved. command: its words. state: that of status.json, or `stalled`
    if it is running, no local process owns it, and it has written nothing for STALLED seconds.
    reason: why it ended, if known. rows: of metrics.jsonl. seconds_a_step: mean of the last steps.
    seconds_left: of the remaining steps at that speed; None if unknown. alarms: current ones.
    """

    name: str
    config: dict[str, Any]
    command: list[str]
    state: str
    reason: str
    steps: int
    rows: list[Row]
    seconds_a_step: float | None
    seconds_left: float | None
    alarms: list[ActiveAlarm]

    @property
    def step(self) -> int:
        return self.rows[-1]["step"] if self.rows else 0

    @property
    def active(self) -> bool:
        return self.state == "running"

    def curve(self, metric: str) -> list[float]:
        return points(self.rows, metric)[1]

    def recent(self, metric: str) -> float | None:
        """Mean over the last steps with the metric."""
        values = self.curve(metric)[-RECENT:]
        return float(np.mean(values)) if values else None

    @property
    def tokens_a_second(self) -> float | None:
        """Response tokens trained on per second, over all parts of a step."""
        tokens, step = self.recent("tokens/response"), self.seconds_a_step
        return tokens / step if tokens and step else None


class Watched:
    """Reads run folders again when they have changed."""

    def __init__(self, alarms: list[Alarm]):
        self._alarms = alarms
        self._read: dict[Path, tuple[Stamp, View]] = {}

    def look(self, folders: Iterable[Path]) -> tuple[list[View], list[str]]:
        """The current states, and why other folders are left out."""
        views, left_out = [], []
        for folder in folders:
            try:
                views.append(self._view(folder))
            except UserError as error:
                left_out.append(str(error))
        labels = run_labels([(view.config, view.command) for view in views])
        named = [replace(view, name=name) for view, name in zip(views, labels, strict=True)]
        return named, left_out

    def _view(self, folder: Path) -> View:
        """Raises UserError for a damaged folder, or one that belongs to no run."""
        now, known = stamp(folder), self._read.get(folder)
        if known is None or known[0] != now:
            known = self._read[folder] = (now, view(folder, self._alarms))
        found = known[1]
        return replace(found, state=_state(folder)) if found.active else found


def view(folder: Path, alarms: list[Alarm]) -> View:
    """Raises UserError for a damaged folder, or one that belongs to no run."""
    config, run = read_config(folder), read_run("", "", 0, folder)
    try:
        steps, speed = int(config["steps"]), _seconds_a_step(run.rows)
        command = RunFolder(folder).command()
        return View(
            name=run_label(config, command),
            config=config,
            command=command,
            state=_state(folder),
            reason=str(RunFolder(folder).status().get("reason", "")),
            steps=steps,
            rows=run.rows,
            seconds_a_step=speed,
            seconds_left=speed * (steps - run.last_step) if speed else None,
            alarms=active_alarms(run.rows, alarms),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"run folder {folder}: its files hold values that no run writes "
            f"({type(error).__name__}: {first_line(error)})"
        ) from error


def _seconds_a_step(rows: list[Row]) -> float | None:
    last = [row for row in rows[-RECENT:] if row["step"]]
    mean = seconds(last) / len(last) if last else math.nan
    return mean if math.isfinite(mean) else None


def _state(folder: Path) -> str:
    run = RunFolder(folder)
    state = str(run.status().get("state", "missing"))
    if state != "running" or run.is_held():
        return state
    written = max(changed for _, changed in filter(None, stamp(folder)))
    return state if time.time() - written / 1e9 < STALLED else "stalled"


def folders_in(places: Iterable[Path]) -> list[Path]:
    """The run folders among the places, and in them. A place without any is kept, for an error."""
    found: dict[Path, None] = {}
    for place in places:
        inside = run_folders([place])
        own = (place / "status.json").exists() or not inside
        found.update(dict.fromkeys([place] if own else inside))
    return list(found)
