"""Curves as drawn, and the table of their points."""

from collections.abc import Iterator

from rec_experiments.analysis.results.figure_data import FigureData
from rec_experiments.analysis.results.runs import Row, points

SMOOTHED = ("train/reward", "train/late_accuracy")  # the first is the only one of the paper
WINDOW = 3  # steps of its running average


def smooth(values: list[float], window: int) -> list[float]:
    """Running average of each value and the window − 1 values before it, fewer at the start."""
    return [
        sum(part) / len(part)
        for end in range(1, len(values) + 1)
        for part in [values[max(0, end - window) : end]]
    ]


def curve(rows: list[Row], metric: str, window: int) -> tuple[list[int], list[float]]:
    """Steps and values of a run's curve as drawn."""
    steps, values = points(rows, metric)
    return steps, smooth(values, window) if metric in SMOOTHED else values


def tidy(data: FigureData, window: int) -> Iterator[Row]:
    """One row per point. value: as measured. drawn: as in the figure, which may be smoothed."""
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
