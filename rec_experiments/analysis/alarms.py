"""Signs that a run may be about to collapse; `alarms.yaml` holds the thresholds with reasons."""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas
import yaml

from rec_experiments.analysis.regime import Range, number

ALARMS = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm(Range):
    """A range that runs leave before they collapse.

    last: the value at a step is the median of this many latest measurements, so one batch alone
    raises no alarm. first: divide by the median of this many first measurements of the run, null
    for none. why: the reason for the range.
    """

    last: int
    first: int | None
    why: str

    def values(self, steps: pandas.DataFrame) -> pandas.Series:
        """The value at each step of a run, once there are enough measurements. steps: its rows of
        the table of runs."""
        curve = steps.set_index("step").reindex(columns=[f"train/{self.quantity}"]).iloc[:, 0]
        points = curve[np.isfinite(curve)]
        unit = points.iloc[: self.first].median() if self.first else 1.0
        begin = max(self.last, (self.first or 0) + 1) - 1
        return (points.rolling(self.last).median() / unit).iloc[begin if unit else len(points) :]

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


@functools.cache
def package_alarms() -> list[Alarm]:
    """The alarms of `alarms.yaml`."""
    entries = yaml.load(ALARMS.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return [Alarm(**entry) for entry in entries]
