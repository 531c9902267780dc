"""The chance that a run on stale data fails, judged after a fifth of its steps.

A run fails if the mean accuracy of its second half lies below its first evaluation. The chance is a
logistic function of two numbers of the first evaluation at or after a fifth of the steps: the share
of the first accuracy that is lost by then, and log10 of the mean of (log ρ)² since the evaluation
before. `early_warning.yaml` has the coefficients; docs/early_warning.py fits and judges them.
"""

import functools
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas
import yaml

FILE = Path(__file__).with_suffix(".yaml")
ACCURACY, DRIFT = "eval/accuracy", "train/log_ratio_second_moment"
LEAST = 1e-8  # smallest mean of (log ρ)²: data that are on-policy to rounding


class Signs(NamedTuple):
    """The two numbers, and the step at which they are known."""

    step: int
    lost: float
    log_drift: float


class Coefficients(NamedTuple):
    """at_least: the chance from which on a run is warned of."""

    constant: float
    lost: float
    log_drift: float
    at_least: float

    def chance(self, signs: Signs) -> float:
        terms = self.lost * signs.lost + self.log_drift * signs.log_drift
        return 1 / (1 + math.exp(-(self.constant + terms)))


@functools.cache
def coefficients() -> Coefficients:
    """Those of early_warning.yaml."""
    return Coefficients(**yaml.safe_load(FILE.read_text(encoding="utf-8")))


def warning(rows: pandas.DataFrame, steps: int) -> str | None:
    """In words, if the chance is large enough. rows, steps: as for `signs`."""
    found, of = signs(rows, steps), coefficients()
    if found is None or (chance := of.chance(found)) < of.at_least:
        return None
    return (
        f"a chance of {chance:.0%} that it fails: at step {found.step} it has lost "
        f"{found.lost:.0%} of its first accuracy, with a mean (log ρ)² of {10**found.log_drift:.2g}"
    )


def signs(rows: pandas.DataFrame, steps: int) -> Signs | None:
    """The signs of a run of so many steps, from its rows in the table of runs; None before a fifth
    of them, for data that are fresh, and where a number is missing."""
    if not steps or not {ACCURACY, DRIFT} <= {*rows.columns}:
        return None
    accuracy = rows.set_index("step")[ACCURACY].dropna()
    later = accuracy.index[(accuracy.index > 0) & (5 * accuracy.index >= steps)]
    if later.empty or not accuracy.iloc[0] > 0:
        return None
    step = int(later[0])
    before = accuracy.index[accuracy.index < step][-1]
    since = rows[(rows["step"] > before) & (rows["step"] <= step)][DRIFT]
    drift = float(since[np.isfinite(since)].mean())
    if not drift > LEAST:
        return None
    return Signs(step, 1 - float(accuracy[step] / accuracy.iloc[0]), math.log10(drift))
