"""Runs as read from their folders, finished or not."""

import functools
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

from rec_experiments.errors import UserError, printable
from rec_experiments.runs.reading import Stamp, stamp, unreadable
from rec_experiments.runs.run_folder import RunFolder

Row = dict[str, Any]
NUMBER = (int, float)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """The content of one run folder, and where a figure shows it.

    arm, column: legend label and column title in the figure.
    state: that of status.json (running, done, failed or interrupted), "missing" or "unreadable".
    rows: of metrics.jsonl. A run without rows is missing; one with rows that is not done is
    partial.
    releases: of the package that made the run; None stands for releases that recorded no number.
    copies: other folders with the same run, which are ignored. they_differ: whether one of them is
    done too and has different numbers.
    note: why the folder cannot be read.
    config: the resolved configuration of its experiment, if the figure's sweep composed it.
    """

    arm: str
    column: str
    seed: int
    path: Path
    state: str
    rows: list[Row]
    releases: frozenset[int | None] = frozenset()
    copies: tuple[Path, ...] = ()
    they_differ: bool = False
    note: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)

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


def run_folders(folders: Iterable[Path]) -> list[Path]:
    """The run folders directly in some folders, sorted."""
    return sorted(file.parent for folder in folders for file in folder.glob("*/status.json"))


def read_run(arm: str, column: str, seed: int, path: Path) -> Run:
    """Read a run, finished or not; one that has not started has no rows.

    Raises UserError for a damaged folder.
    """
    state, rows, releases = _read(path, stamp(path))
    return Run(
        arm=arm, column=column, seed=seed, path=path, state=state, rows=rows, releases=releases
    )


@functools.lru_cache(maxsize=1024)  # figures share runs, and a run takes half a megabyte
def _read(path: Path, now: Stamp) -> tuple[str, list[Row], frozenset[int | None]]:
    """State, rows and releases of a run. now: sizes and times of its files, as the cache's key."""
    folder = RunFolder(path)
    origin = folder.provenance()
    state = folder.status().get("state", "missing")
    rows = folder.metrics() if state != "missing" else []
    starts = origin.get("starts") or [origin]
    return state, rows, frozenset(start.get("release") for start in starts)


def releases_text(runs: Iterable[Run]) -> str:
    """Which releases made the runs, as in `Runs of releases 11 and 12.`"""
    found = {release for run in runs if run.rows for release in run.releases}
    known = [str(release) for release in sorted(each for each in found if each is not None)]
    last = ["an earlier release"] if None in found else []
    names = [f"release{'s' if len(known) > 1 else ''} {_listed(known)}"] if known else []
    return f"Runs of {' and '.join(names + last)}." if found else ""


def _listed(words: list[str]) -> str:
    """As in `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def read_or_leave_out(
    arm: str, column: str, seed: int, path: Path, steps: int | None = None
) -> Run:
    """Read a run as `read_run` does, but report a damaged one on stderr and return it without rows.

    steps: of the finished run, if known. A run whose status is done must have each step once, in
    order, and an evaluation at the end.
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
            raise unreadable(metrics, f"it has step {row['step']} in place of step {expected}")
    if "eval/accuracy" not in run.rows[-1]:
        raise unreadable(metrics, "it has no evaluation at the end")


@functools.cache  # once per reason
def leave_out(reason: str) -> None:
    """Print on stderr why a run is left out."""
    print(f"left out: {printable(reason)}", file=sys.stderr)


def points(rows: list[Row], metric: str) -> tuple[list[int], list[float]]:
    """Steps and values at which the metric was measured and is finite."""
    found = [row for row in rows if metric in row and is_finite(row[metric])]
    return [row["step"] for row in found], [row[metric] for row in found]


def is_finite(value: object) -> TypeGuard[int | float]:
    """Whether the value is a finite number; a truth value is not."""
    return isinstance(value, NUMBER) and not isinstance(value, bool) and math.isfinite(value)
