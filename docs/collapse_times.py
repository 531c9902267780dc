"""Does the time to a collapse follow M · S · η = constant (arXiv 2607.01083)?

M is the gradient step at which the accuracy has lost half of its first value, S the age of the
oldest data by then and η the learning rate. Under a schedule whose oldest data have the age A, S is
the smaller of M and A, so M = max(c ÷ (A · η), √(c ÷ η)).
"""

import math

import numpy as np
import pandas
from archived_runs import LANGUAGE_MODEL, runs

from rec_experiments.analysis.results.stability import RATE

UNCLIPPED = ("REINFORCE", "RED-Drop", "REC-OneSide-NoIS, upper bound")
FITTED = {"seed": 0, "ages": (19, 49), "task": "reduction"}


def collapses() -> pandas.DataFrame:
    """The runs of unclipped methods on stale data that lose half of their accuracy after the first
    evaluation; of all others only a bound is known. M: the middle between two evaluations.
    """
    names = ("stability", LANGUAGE_MODEL, "constant_lags")
    tables = [runs(name).assign(archive=name) for name in names]
    found = pandas.concat([each for each in tables if len(each)])
    known = (found["halved"] > found["every"]) & (found["halved"] < math.inf) & (found["age"] > 0)
    found = found[known & found["arm"].isin(UNCLIPPED)]
    return found.assign(M=found["halved"] - found["every"] / 2)


def constant(found: pandas.DataFrame) -> float:
    """The geometric mean of M · S · η."""
    return float(np.exp(np.log(found["M"] * found[["M", "age"]].min(1) * found[RATE]).mean()))


def predicted(found: pandas.DataFrame, c: float) -> pandas.Series:
    """M of each run."""
    return np.maximum(c / (found["age"] * found[RATE]), np.sqrt(c / found[RATE]))


def table() -> list[list[str]]:
    """A row for each group of runs: its number, the share whose M is predicted within a factor of
    two, the median of measured ÷ predicted, and the constant of its own runs."""
    found = collapses()
    fitted = (found["task"] == FITTED["task"]) & (found["seed"] == FITTED["seed"])
    fitted &= found["age"].isin(FITTED["ages"]) & (found["archive"] == "stability")
    c = constant(found[fitted])
    small = (found["task"] == FITTED["task"]) & (found["archive"] == "stability") & ~fitted
    groups = {
        "fitted: reduction, seed 0, ages 19 and 49": fitted,
        "reduction, other seeds, same ages": small & found["age"].isin(FITTED["ages"]),
        "reduction, ages 4 and 149": small & ~found["age"].isin(FITTED["ages"]),
        "reduction, constant lags": found["archive"] == "constant_lags",
        "chain arithmetic": found["task"] == "chain",
        "language model": found["task"] == "language model",
    }
    return [_row(name, found[chosen], c) for name, chosen in groups.items() if chosen.any()]


def _row(name: str, found: pandas.DataFrame, c: float) -> list[str]:
    ratio = found["M"] / predicted(found, c)
    near = ((ratio >= 0.5) & (ratio <= 2)).sum()
    return [name, f"{near} of {len(found)}", f"{ratio.median():.2f}", f"{constant(found):.2g}"]
