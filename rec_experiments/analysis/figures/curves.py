"""Curves as drawn: a table of points."""

import numpy as np
import pandas

from rec_experiments.analysis.results.figure import FigureRuns

SMOOTHED = ("train/reward", "train/late_accuracy")  # the first is the only one of the paper
WINDOW = 3  # steps of its running average
RUN = ["arm", "column", "seed", "run"]


def tidy(data: FigureRuns, window: int) -> pandas.DataFrame:
    """One row per finite point of a panel: RUN, metric, step, value as measured, and `drawn`, the
    value as in the figure: for SMOOTHED the average over it and the window − 1 values before."""
    metrics = dict.fromkeys(panel.metric for panel in data.panels)
    steps = data.steps.reindex(columns=[*RUN, "step", *metrics])
    points = steps.melt([*RUN, "step"], [*metrics], "metric", "value")
    points = points[np.isfinite(points["value"].astype(float))]
    curves = points.groupby([*RUN, "metric"], sort=False)["value"]
    averages = curves.transform(lambda values: values.rolling(window, min_periods=1).mean())
    return points.assign(drawn=averages.where(points["metric"].isin(SMOOTHED), points["value"]))
