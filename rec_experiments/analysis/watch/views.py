"""From run folders to what is shown of them. A folder that cannot be read is named."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rec_experiments.analysis.regime.alarms import ActiveAlarm, Alarm, active_alarms
from rec_experiments.analysis.results.runs import Row, points, read_config, read_run
from rec_experiments.analysis.results.statistics import seconds
from rec_experiments.config.identity import flat
from rec_experiments.errors import UserError, first_line
from rec_experiments.runs.run_folder import RunFolder

RECENT = 10  # steps that a number of now is the mean of
SILENT = 600.0  # seconds without a row after which a run counts as dead, if nobody holds its folder

CHANGING = ("status.json", "metrics.jsonl")  # files of a run that is under way

Stamp = tuple[int, int]  # of a file: when it was written in ns, and its bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """A run as it stands. state: that of status.json, or `silent` for one that says that it is
    running and is not. reason: why it ended, if it says so. rows: of metrics.jsonl. seconds_a_step:
    of the last steps; seconds_left: what is left to do at that speed; None where that is not known.
    alarms: those that it gives now."""

    name: str
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
        """Mean over the last steps that have it."""
        values = self.curve(metric)[-RECENT:]
        return float(np.mean(values)) if values else None

    @property
    def tokens_a_second(self) -> float | None:
        """Response tokens trained on, by all that the steps took."""
        tokens, step = self.recent("tokens/response"), self.seconds_a_step
        return tokens / step if tokens and step else None


class Watched:
    """Run folders that are looked at again and again; one is read again if it has changed."""

    def __init__(self, alarms: list[Alarm]):
        self._alarms = alarms
        self._read: dict[Path, tuple[list[Stamp], View]] = {}

    def look(self, folders: Iterable[Path]) -> tuple[list[View], list[str]]:
        """The runs as they are now, and why others are left out."""
        views, left_out = [], []
        for folder in folders:
            try:
                views.append(self._view(folder))
            except UserError as error:
                left_out.append(str(error))
        return views, left_out

    def _view(self, folder: Path) -> View:
        """Raises UserError for a folder that is no run's, or is damaged."""
        stamps = [_stamp(folder / name) for name in CHANGING]
        known = self._read.get(folder)
        if known is None or known[0] != stamps:
            known = self._read[folder] = (stamps, view(folder, self._alarms))
        found = known[1]
        return replace(found, state=_state(folder)) if found.active else found  # it may have died


def view(folder: Path, alarms: list[Alarm]) -> View:
    """Raises UserError for a folder that is no run's, or holds something else than a run writes."""
    config, run = read_config(folder), read_run("", "", 0, folder)
    try:
        steps, speed = int(config["steps"]), _seconds_a_step(run.rows)
        return View(
            name=folder.name,
            state=_state(folder),
            reason=str(RunFolder(folder).status().get("reason", "")),
            steps=steps,
            rows=run.rows,
            seconds_a_step=speed,
            seconds_left=speed * (steps - run.last_step) if speed else None,
            alarms=active_alarms(run.rows, [each for each in alarms if each.is_for(flat(config))]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"run folder {folder}: holds something else than a run writes there "
            f"({type(error).__name__}: {first_line(error)})"
        ) from error


def _seconds_a_step(rows: list[Row]) -> float | None:
    last = [row for row in rows[-RECENT:] if row["step"]]
    mean = seconds(last) / len(last) if last else math.nan
    return mean if math.isfinite(mean) else None


def _state(folder: Path) -> str:
    run = RunFolder(folder)
    said = str(run.status().get("state", "missing"))
    if said != "running" or run.is_held():
        return said
    written = max(stamp for stamp, _ in (_stamp(folder / name) for name in CHANGING))
    return said if time.time() - written / 1e9 < SILENT else "silent"


def _stamp(file: Path) -> Stamp:
    try:
        found = file.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


def folders_in(places: Iterable[Path]) -> list[Path]:
    """The run folders that places are, or hold. One that is neither stays, to be named."""
    found: dict[Path, None] = {}
    for place in places:
        inside = sorted(file.parent for file in place.glob("*/status.json"))
        own = (place / "status.json").exists() or not inside
        found.update(dict.fromkeys([place] if own else inside))
    return list(found)
