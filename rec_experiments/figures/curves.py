"""From run folders to numbers: the tidy table, curves over seeds, statistics. Pure functions.

S seeds, T steps. A run is partial if it is not done, missing if it has no rows.
"""

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rec_experiments.errors import UserError
from rec_experiments.records.run_folder import RunFolder
from rec_experiments.sweeps import Panel

Array = NDArray[np.float64]
Row = dict[str, Any]

SMOOTHED = ("train/reward",)  # the paper smooths no other curve
SUMMARISED = ("eval/accuracy", "train/reward")
FINAL_POINTS = 3  # evaluations, or training batches, whose mean is a run's final value
RESAMPLES, CONFIDENCE, BOOTSTRAP_SEED = 2000, 0.95, 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One curve's place in the figure and what its folder holds. rows: of metrics.jsonl.

    copies: other folders that hold the same run and were passed over. made_by: who made it, if not
    this code alone.
    """

    arm: str
    column: str
    seed: int
    path: Path
    state: str  # missing, or that of status.json: running, done, failed, interrupted
    rows: list[Row]
    copies: tuple[Path, ...] = ()
    made_by: str = ""

    @property
    def cell(self) -> str:
        return ", ".join(part for part in (self.arm, self.column) if part)

    @property
    def name(self) -> str:
        return f"{self.cell}, seed {self.seed}"

    @property
    def last_step(self) -> int:
        return self.rows[-1]["step"] if self.rows else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class FigureData:
    """What a figure of curves is drawn from. Orders of arms, columns, panels are those drawn.

    scale: of its runs, mini or paper.
    """

    name: str
    title: str
    caption: str
    scale: str
    arms: list[str]
    columns: list[str]
    panels: list[Panel]
    runs: list[Run]

    def select(self, arm: str, column: str) -> list[Run]:
        """The runs of one cell that have rows."""
        return [run for run in self.runs if (run.arm, run.column) == (arm, column) and run.rows]

    @property
    def missing(self) -> list[Run]:
        return [run for run in self.runs if not run.rows]

    @property
    def partial(self) -> list[Run]:
        return [run for run in self.runs if run.rows and run.state != "done"]


def read_run(arm: str, column: str, seed: int, path: Path) -> Run:
    """A run as far as it went; one that never started has no rows.

    Raises UserError for a folder that cannot be read or that holds something else.
    """
    try:
        state = RunFolder(path).status().get("state", "missing")
        rows = RunFolder(path).metrics() if state != "missing" else []
        made_by = RunFolder(path).made_by()
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(f"run folder {path}: cannot be read ({error})") from error
    return Run(
        arm=arm, column=column, seed=seed, path=path, state=state, rows=rows, made_by=made_by
    )


def points(rows: list[Row], metric: str) -> tuple[list[int], list[float]]:
    """Steps and values where the metric was measured and finite."""
    pairs = [(row["step"], row[metric]) for row in rows if _finite(row.get(metric))]
    return [step for step, _ in pairs], [value for _, value in pairs]


def smooth(values: list[float], window: int) -> list[float]:
    """Running average: of each value and the window − 1 before it, fewer at the start."""
    return [
        sum(part) / len(part)
        for end in range(1, len(values) + 1)
        for part in [values[max(0, end - window) : end]]
    ]


def curve(rows: list[Row], metric: str, window: int) -> tuple[list[int], list[float]]:
    """A run's curve as drawn."""
    steps, values = points(rows, metric)
    return steps, smooth(values, window) if metric in SMOOTHED else values


@dataclass(frozen=True, slots=True)
class Band:
    """Mean over seeds, T values, and its bootstrap interval; None for a single seed."""

    steps: list[int]
    mean: Array
    interval: tuple[Array, Array] | None


def band(curves: list[tuple[list[int], list[float]]]) -> Band:
    """Mean over curves at the steps that all of them have, so that it never changes its seeds."""
    by_step = [dict(zip(*each, strict=True)) for each in curves]
    common = set.intersection(*(set(each) for each in by_step)) if by_step else set()
    steps = sorted(common)
    values_ST = np.array([[each[step] for step in steps] for each in by_step], dtype=float)
    if not steps:
        return Band([], np.array([]), None)
    return Band(steps, values_ST.mean(0), bootstrap(values_ST))


def bootstrap(values_ST: Array) -> tuple[Array, Array] | None:
    """Percentile interval of the mean over seeds at each of T points; None for a single seed.

    The same resamples serve every point, and every call, so a figure is the same each time. With
    three seeds the interval is their range: 1 of 27 resamples takes one seed three times.
    """
    seeds = len(values_ST)
    if seeds < 2:
        return None
    chosen = np.random.default_rng(BOOTSTRAP_SEED).integers(seeds, size=(RESAMPLES, seeds))
    counts_RS = (chosen[:, :, None] == np.arange(seeds)).sum(1)
    means_RT = counts_RS @ values_ST / seeds
    tail = (1 - CONFIDENCE) / 2
    low_T, high_T = np.quantile(means_RT, [tail, 1 - tail], axis=0)
    return low_T, high_T


def tidy(data: FigureData, window: int) -> Iterator[Row]:
    """One row a point: value as measured, drawn as in the figure (smoothed where that is)."""
    for run in data.runs:
        for panel in data.panels:
            steps, values = points(run.rows, panel.metric)
            _, drawn = curve(run.rows, panel.metric, window)
            for step, value, smoothed in zip(steps, values, drawn, strict=True):
                yield {
                    "arm": run.arm,
                    "column": run.column,
                    "seed": run.seed,
                    "metric": panel.metric,
                    "step": step,
                    "value": value,
                    "drawn": smoothed,
                }


def summarise_run(rows: list[Row], metric: str) -> dict[str, float] | None:
    """A run in four numbers, not smoothed; None where the metric was never measured.

    final: mean of the last points. area: under the curve by trapezoids, divided by its length in
    steps, so that it is the curve's mean height. best, last: single points.
    """
    steps, values = points(rows, metric)
    if not values:
        return None
    length = steps[-1] - steps[0]
    return {
        "final": float(np.mean(values[-FINAL_POINTS:])),
        "area": float(np.trapezoid(values, steps)) / length if length else values[0],
        "best": max(values),
        "last": values[-1],
    }


def statistics(data: FigureData) -> dict[str, Any]:
    """Per arm and column, over finished runs: mean of each summary with its interval.

    Partial and missing runs are named, and are not in the means.
    """
    return {
        "figure": data.name,
        "title": data.title,
        "interval": f"percentile bootstrap over seeds, {CONFIDENCE:.0%}, {RESAMPLES} resamples",
        "final": f"mean of the last {FINAL_POINTS} points of a run",
        "area": "area under the curve divided by its length",
        "rows": list(_statistic_rows(data)),
        "partial": [_describe(run) for run in data.partial],
        "missing": [run.name for run in data.missing],
    }


def _statistic_rows(data: FigureData) -> Iterator[Row]:
    for arm in data.arms:
        for column in data.columns:
            runs = data.select(arm, column)
            for metric in SUMMARISED:
                done = [run.rows for run in runs if run.state == "done"]
                found = [each for each in (summarise_run(rows, metric) for rows in done) if each]
                yield {
                    "arm": arm,
                    "column": column,
                    "metric": metric,
                    "seeds": len(found),
                    **{key: _over_seeds([each[key] for each in found]) for key in SUMMARIES},
                }


SUMMARIES = ("final", "area", "best", "last")


def _over_seeds(values: list[float]) -> dict[str, Any] | None:
    if not values:
        return None
    interval = bootstrap(np.array(values)[:, None])
    return {
        "mean": float(np.mean(values)),
        "interval": [float(end[0]) for end in interval] if interval else None,
    }


def statistics_table(found: dict[str, Any]) -> str:
    """The statistics as text, one line an arm, column and metric."""
    head = ["arm", "column", "metric", "seeds", *SUMMARIES]
    body = [
        [row["arm"], row["column"], row["metric"], str(row["seeds"])]
        + [_cell(row[key]) for key in SUMMARIES]
        for row in found["rows"]
    ]
    lines = [
        found["title"],
        "",
        *columns_of_text([head, *body]),
        "",
        f"[ ]    {found['interval']}; none with one seed",
        f"final  {found['final']}",
        f"area   {found['area']}",
    ]
    for word in ("partial", "missing"):
        lines += [f"{word}  {name}" for name in found[word]]
    return "\n".join(lines) + "\n"


def columns_of_text(table: list[list[str]]) -> list[str]:
    """Rows of cells as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def remarks(data: FigureData) -> list[str]:
    """What a reader of the picture must know about runs that are not whole, or not alone."""
    found = []
    if data.partial:
        found.append("Partial, drawn as far as they go: " + _names(map(_describe, data.partial)))
    seeds: dict[str, list[str]] = {}
    for run in data.missing:
        seeds.setdefault(run.cell, []).append(str(run.seed))
    if seeds:
        found.append(
            "Missing: " + _names(f"{cell}, seed {', '.join(each)}" for cell, each in seeds.items())
        )
    copied = {run.path: run for run in data.runs if run.copies}
    if copied:
        found.append(
            "In several folders, counted once: "
            + _names(f"{run.name}, from {path.parent}" for path, run in copied.items())
        )
    return found + makers(data.runs)


def makers(runs: Iterable[Run]) -> list[str]:
    """A sentence on each that made runs and is not this code."""
    names: dict[str, dict[Path, str]] = {}
    for run in runs:
        if run.made_by:
            names.setdefault(run.made_by, {}).setdefault(run.path, run.name)
    return [f"Made by {maker}: " + _names(each.values()) for maker, each in names.items()]


NAMES_SHOWN = 6


def _names(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - NAMES_SHOWN
    return "; ".join(names[:NAMES_SHOWN]) + (f"; and {more} more." if more > 0 else ".")


def _describe(run: Run) -> str:
    return f"{run.name} ({run.state}, step {run.last_step})"


def _cell(value: dict[str, Any] | None) -> str:
    if value is None:
        return "-"
    low_high = value["interval"]
    interval = f" [{low_high[0]:.3f}, {low_high[1]:.3f}]" if low_high else ""
    return f"{value['mean']:.3f}{interval}"


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def to_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
