"""Signs that a run may be about to collapse; `alarms.yaml` holds the thresholds with reasons."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rec_experiments.analysis.regime.ranges import Range, entries
from rec_experiments.analysis.results.runs import Row, points

ALARMS = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm(Range):
    """A range that runs leave before they collapse.

    last: the value at a step is the median of this many latest measurements, so one batch alone
    raises no alarm. first: divide by the median of this many first measurements of the run, null
    for none. why: the reason for the range. Raises UserError for counts below 1.
    """

    last: int
    first: int | None
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ActiveAlarm:
    """An alarm at the last step of a run. value: of its quantity. since: the first step of it."""

    alarm: Alarm
    value: float
    since: int


def package_alarms() -> list[Alarm]:
    """Those of `alarms.yaml`."""
    return [Alarm(**entry) for entry in entries(ALARMS)]


def values_of(rows: list[Row], alarm: Alarm) -> tuple[list[int], list[float]]:
    """Steps and values of an alarm's quantity, once there are enough measurements."""
    steps, values = points(rows, f"train/{alarm.quantity}")
    skipped = max(alarm.last, (alarm.first or 0) + 1) - 1
    if len(values) <= skipped:
        return [], []
    medians = np.median(sliding_window_view(values, alarm.last), axis=1)[skipped - alarm.last + 1 :]
    unit = float(np.median(values[: alarm.first])) if alarm.first else 1.0
    return (steps[skipped:], [float(each) / unit for each in medians]) if unit else ([], [])


def active_alarms(rows: list[Row], alarms: list[Alarm]) -> list[ActiveAlarm]:
    """The alarms at the last step of a run."""
    found = []
    for alarm in alarms:
        steps, values = values_of(rows, alarm)
        inside = [n for n, value in enumerate(values) if alarm.place(value) == "inside"]
        since = inside[-1] + 1 if inside else 0
        if since < len(values):
            found.append(ActiveAlarm(alarm=alarm, value=values[-1], since=steps[since]))
    return found
