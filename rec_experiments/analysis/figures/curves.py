"""Curves as drawn, and the table of their points."""

import pandas

from rec_experiments.analysis.results import statistics
from rec_experiments.analysis.results.figure import FigureRuns

SMOOTHED = ("train/reward", "train/late_accuracy")  # the first is the only one of the paper
WINDOW = 3  # steps of its running average
RUN = ["arm", "column", "seed", "run"]
COLUMNS = ["arm", "column", "seed", "metric", "step", "value", "drawn"]


def curve(rows: pandas.DataFrame, metric: str, window: int) -> pandas.Series:
    """The finite values of a run's curve by step, as drawn."""
    points = measured(rows, metric)
    return smooth(points, window) if metric in SMOOTHED else points


def measured(rows: pandas.DataFrame, metric: str) -> pandas.Series:
    """The finite values of a run's curve by step."""
    points = statistics.curve(rows, metric)
    return points[points.abs() < float("inf")]


def smooth(points: pandas.Series, window: int) -> pandas.Series:
    """Running average of each value and the window − 1 values before it, fewer at the start."""
    values = points.tolist()
    parts = (values[max(0, end - window) : end] for end in range(1, len(values) + 1))
    return pandas.Series([sum(part) / len(part) for part in parts], points.index, dtype=float)


def tidy(data: FigureRuns, window: int) -> pandas.DataFrame:
    """One row per point. value: as measured. drawn: as in the figure, which may be smoothed."""
    found = [
        pandas.DataFrame(
            {
                "arm": arm,
                "column": column,
                "seed": seed,
                "metric": panel.metric,
                "value": measured(rows, panel.metric),
                "drawn": curve(rows, panel.metric, window),
            }
        )
        for (arm, column, seed, _), rows in data.steps.groupby(RUN, sort=False)
        for panel in data.panels
    ]
    points = pandas.concat(found).reset_index() if found else pandas.DataFrame(columns=COLUMNS)
    return points[COLUMNS].astype({"step": int})
