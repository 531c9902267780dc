"""What run folders hold, read as far as the runs went."""

import functools
import math
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from rec_experiments.errors import UserError, printable
from rec_experiments.records.reading import read_object, unreadable
from rec_experiments.records.run_folder import CONFIG, OF_EVERY_RUN, RunFolder
from rec_experiments.sweeps import Panel

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One curve's place in the figure and what its folder holds. rows: of metrics.jsonl.

    A run is partial if it is not done, missing if it has no rows. copies: other folders that hold
    the same run and were passed over. note: why it cannot be read.
    """

    arm: str
    column: str
    seed: int
    path: Path
    state: str  # missing, unreadable, or that of status.json: running, done, failed, interrupted
    rows: list[Row]
    copies: tuple[Path, ...] = ()
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
    where they take those that the figure shows. shown: those seeds.
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
    folder = RunFolder(path)
    state = folder.status().get("state", "missing")
    rows = folder.metrics() if state != "missing" else []
    return Run(
        arm=arm,
        column=column,
        seed=seed,
        path=path,
        state=state,
        rows=rows,
        made_by=folder.made_by(),
    )


def read_or_leave_out(
    arm: str, column: str, seed: int, path: Path, steps: int | None = None
) -> Run:
    """As `read_run`; one that cannot be read has no rows and is named on stderr, once.

    steps: that the run has when it is done, if known; one that says it is done and has others has
    lost rows, or is another run.
    """
    try:
        run = read_run(arm, column, seed, path)
        if run.done and steps not in (None, run.last_step):
            raise unreadable(path / "metrics.jsonl", f"it ends at step {run.last_step} of {steps}")
        return run
    except UserError as error:
        leave_out(str(error))
        return Run(
            arm=arm, column=column, seed=seed, path=path, state="unreadable", rows=[],
            note=str(error),
        )  # fmt: skip


@functools.cache  # once for each reason
def leave_out(reason: str) -> None:
    """Say that a run does not count, and why."""
    print(f"left out: {printable(reason)}", file=sys.stderr)


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
    measured = [row for row in rows if is_finite(row.get(metric))]
    return [row["step"] for row in measured], [row[metric] for row in measured]


def is_finite(value: object) -> TypeGuard[int | float]:
    """Whether it is a number, and no NaN or infinity."""
    return isinstance(value, int | float) and math.isfinite(value)
