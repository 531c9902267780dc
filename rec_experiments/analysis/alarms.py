"""Signs that a run may be about to collapse.

An alarm of `alarms.yaml` sounds where a quantity leaves a range. The early warning is the chance
that a run on stale data fails: that the mean accuracy of its second half lies below its first
evaluation. It is a logistic function of two numbers of the first evaluation at or after a fifth of
the steps: the share of the first accuracy that is lost by then, and log10 of the mean of (log ρ)²
since the evaluation before. `early_warning.yaml` has the coefficients; docs/early_warning.py fits
and judges them.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
import yaml

from rec_experiments.analysis.regime import Range, number
from rec_experiments.analysis.results.statistics import ACCURACY

DRIFT = "train/log_ratio_second_moment"
LEAST = 1e-8  # smallest mean of (log ρ)²: data that are on-policy to rounding


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm(Range):
    """A range that runs leave before they collapse.

    last: the value at a step is the median of this many latest measurements, so one batch alone
    raises no alarm. why: the reason for the range.
    """

    last: int
    why: str

    def values(self, steps: pandas.DataFrame) -> pandas.Series:
        """The value at each step of a run, once there are enough measurements. steps: its rows of
        the table of runs."""
        curve = steps.set_index("step").reindex(columns=[f"train/{self.quantity}"]).iloc[:, 0]
        return curve[np.isfinite(curve)].rolling(self.last).median().dropna()

    def message(self, steps: pandas.DataFrame) -> str:
        """As in `effective sample size 0.02 since step 36, should be at least 0.15`; "" unless the
        run is outside of the range at its last step."""
        values = self.values(steps)
        inside = values.index[values.map(self.place) == "inside"]
        since = values.index[values.index > inside[-1]] if len(inside) else values.index
        if since.empty:
            return ""
        now = number(values.iloc[-1])
        return f"{self.name} {now} since step {since[0]:.0f}, should be {self.span}"


def _read(file: str) -> Any:
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return yaml.load(text, yaml.CSafeLoader)


ALARMS = [Alarm(**entry) for entry in _read("alarms.yaml")]


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


EARLY_WARNING = Coefficients(**_read("early_warning.yaml"))


def warning(rows: pandas.DataFrame, steps: int) -> str | None:
    """In words, if the chance is large enough. rows, steps: as for `signs`."""
    found = signs(rows, steps)
    if found is None or (chance := EARLY_WARNING.chance(found)) < EARLY_WARNING.at_least:
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
