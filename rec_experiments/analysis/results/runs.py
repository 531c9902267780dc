"""What run folders hold, read as far as the runs went."""

import contextlib
import functools
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

from rec_experiments.errors import UserError, printable
from rec_experiments.runs.reading import Stamp, read_object, stamp, unreadable
from rec_experiments.runs.run_folder import CONFIG, OF_EVERY_RUN, RunFolder
from rec_experiments.sweeps import Panel

Row = dict[str, Any]
NUMBER = (int, float)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One curve's place in the figure and what its folder holds. rows: of metrics.jsonl.

    A run is partial if it is not done, missing if it has no rows. copies: other folders that hold
    the same run and were passed over; they_differ: one of them is done too and has other numbers.
    note: why it cannot be read.
    """

    arm: str
    column: str
    seed: int
    path: Path
    state: str  # missing, unreadable, or that of status.json: running, done, failed, interrupted
    rows: list[Row]
    copies: tuple[Path, ...] = ()
    they_differ: bool = False
    made_by: str = ""
    note: str = ""

    @property
    def cell(self) -> str:
        return ", ".join(part for part in (self.arm, self.column) if part)

    @property
    def name(self) -> str:
        return f"{self.cell}, seed {self.seed}"

    @property
    def done(self) -> bool:
        return self.state == "done"

    @property
    def last_step(self) -> int:
        return self.rows[-1]["step"] if self.rows else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureData:
    """The runs of a figure. Orders of arms, columns and panels are those drawn.

    scale: of its runs, a choice of conf/scale. claim_seeds: how many seeds claims need there, None
    where they take those that the figure shows. shown: those seeds. picture: what to draw of them.
    statistics: of the evaluations, those in a table of their own. schedules: (interval, offset) of
    each column, where the columns are schedules.
    """

    name: str
    title: str
    caption: str
    scale: str
    claim_seeds: int | None
    shown: list[int]
    arms: list[str]
    columns: list[str]
    panels: list[Panel]
    runs: list[Run]
    picture: str = "curves"
    statistics: list[str] = field(default_factory=list)
    schedules: Mapping[str, tuple[int | None, int]] = field(default_factory=dict)

    def select(self, arm: str, column: str) -> list[Run]:
        """The runs of one cell that have rows."""
        return [run for run in self.runs if (run.arm, run.column) == (arm, column) and run.rows]

    def as_shown(self) -> "FigureData":
        """Without the runs of seeds that are there for claims alone."""
        return replace(self, runs=[run for run in self.runs if run.seed in self.shown])

    @property
    def missing(self) -> list[Run]:
        return [run for run in self.runs if not run.rows]

    @property
    def partial(self) -> list[Run]:
        return [run for run in self.runs if run.rows and not run.done]


def read_run(arm: str, column: str, seed: int, path: Path) -> Run:
    """A run as far as it went; one that never started has no rows.

    Raises UserError for a folder that cannot be read or that holds something else.
    """
    state, rows = _contents(path, stamp(path))
    return Run(
        arm=arm,
        column=column,
        seed=seed,
        path=path,
        state=state,
        rows=rows,
        made_by=RunFolder(path).made_by(),
    )


@functools.lru_cache(maxsize=1024)  # figures share runs, and a run takes half a megabyte
def _contents(path: Path, now: Stamp) -> tuple[str, list[Row]]:
    """State and rows of a run whose files are as `now` says."""
    folder = RunFolder(path)
    state = folder.status().get("state", "missing")
    return state, folder.metrics() if state != "missing" else []


def read_or_leave_out(
    arm: str, column: str, seed: int, path: Path, steps: int | None = None
) -> Run:
    """As `read_run`; one that cannot be read has no rows and is named on stderr, once.

    steps: that the run has when it is done, if known; one that says it is done and has not each of
    them once, in order, has lost rows, or is another run.
    """
    try:
        run = read_run(arm, column, seed, path)
        if run.done and steps is not None:
            _check_steps(run, steps)
        return run
    except UserError as error:
        leave_out(str(error))
        return Run(
            arm=arm, column=column, seed=seed, path=path, state="unreadable", rows=[],
            note=str(error),
        )  # fmt: skip


def _check_steps(run: Run, steps: int) -> None:
    metrics = run.path / "metrics.jsonl"
    if run.last_step != steps:
        raise unreadable(metrics, f"it ends at step {run.last_step} of {steps}")
    for expected, row in enumerate(run.rows):
        if row["step"] != expected:
            raise unreadable(metrics, f"step {row['step']} stands where step {expected} should")
    if "eval/accuracy" not in run.rows[-1]:
        raise unreadable(metrics, "it has no evaluation at its end")


def leave_out(reason: str) -> None:
    """Say that a run does not count, and why; once for each reason."""
    for reasons in _heard:
        reasons.append(reason)
    _say(reason)


@functools.cache
def _say(reason: str) -> None:
    print(f"left out: {printable(reason)}", file=sys.stderr)


_heard: list[list[str]] = []


@contextlib.contextmanager
def left_out_within() -> Iterator[list[str]]:
    """The reasons that `leave_out` is given within, said before or not."""
    reasons: list[str] = []
    _heard.append(reasons)
    try:
        yield reasons
    finally:
        _heard.pop()


def read_config(path: Path) -> dict[str, Any]:
    """A run's resolved configuration. Raises UserError if the folder has no readable one."""
    config = read_object(path / CONFIG)
    if not config:
        raise UserError(f"run folder {path}: has no {CONFIG}")
    if not config.keys() >= OF_EVERY_RUN:
        raise UserError(f"run folder {path}: its {CONFIG} is not that of a run")
    return config


def points(rows: list[Row], metric: str) -> tuple[list[int], list[float]]:
    """Steps and values where the metric was measured and finite."""
    found = [row for row in rows if metric in row and is_finite(row[metric])]
    return [row["step"] for row in found], [row[metric] for row in found]


def is_finite(value: object) -> TypeGuard[int | float]:
    """Whether it is a number, and no NaN, infinity or truth value."""
    return isinstance(value, NUMBER) and not isinstance(value, bool) and math.isfinite(value)
