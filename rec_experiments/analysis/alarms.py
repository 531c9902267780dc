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


@dataclass(frozen=True, kw_only=True, slots=True)
class ActiveAlarm:
    """An alarm at the last step of a run. value: of its quantity. since: the first step of it."""

    alarm: Alarm
    value: float
    since: int

    def __str__(self) -> str:
        """As in `effective sample size 0.02 since step 36, should be at least 0.15`."""
        value, span = number(self.value), self.alarm.span
        return f"{self.alarm.name} {value} since step {self.since}, should be {span}"


@functools.cache
def package_alarms() -> list[Alarm]:
    """The alarms of `alarms.yaml`."""
    entries = yaml.load(ALARMS.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return [Alarm(**entry) for entry in entries]


def active_alarms(steps: pandas.DataFrame, alarms: list[Alarm]) -> list[ActiveAlarm]:
    """The alarms at the last step of a run."""
    found = []
    for alarm in alarms:
        values = alarm.values(steps)
        inside = [alarm.place(value) == "inside" for value in values]
        if inside and not inside[-1]:
            since = len(inside) - inside[::-1].index(True) if True in inside else 0
            found.append(
                ActiveAlarm(alarm=alarm, value=values.iloc[-1], since=int(values.index[since]))
            )
    return found
