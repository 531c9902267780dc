"""Signs that a collapse may be coming, from the rows of one run so far.

`alarms.yaml` holds the thresholds with their reasons.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from rec_experiments.analysis.regime.ranges import Expected
from rec_experiments.analysis.results.runs import Row, points
from rec_experiments.errors import UserError

ALARMS = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True, kw_only=True, slots=True)
class Alarm(Expected):
    """A range that a run leaves before it collapses.

    last: the value at a step is the median of so many measurements up to it, so that one batch says
    nothing. first: if given, it is divided by the median of the run's first so many. why: the
    reason for the range. Raises UserError for a count that is none.
    """

    last: int
    first: int | None
    why: str

    def __post_init__(self) -> None:
        for key, count in (("last", self.last), ("first", 1 if self.first is None else self.first)):
            if type(count) is not int or count < 1:
                raise UserError(f"{self.name}: {key}={count}: must be a whole number, at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sounding:
    """An alarm that a run gives now. value: of its quantity. since: the step from which on."""

    alarm: Alarm
    value: float
    since: int


def course(rows: list[Row], alarm: Alarm) -> tuple[list[int], list[float]]:
    """Steps and values of an alarm's quantity, from where there are enough measurements on."""
    steps, values = points(rows, f"train/{alarm.quantity}")
    skipped = max(alarm.last, (alarm.first or 0) + 1) - 1
    if len(values) <= skipped:
        return [], []
    medians = np.median(sliding_window_view(values, alarm.last), axis=1)[skipped - alarm.last + 1 :]
    unit = float(np.median(values[: alarm.first])) if alarm.first else 1.0
    return (steps[skipped:], [float(each) / unit for each in medians]) if unit else ([], [])


def first_sounded(rows: list[Row], alarm: Alarm) -> int | None:
    """The first step at which the run gave it."""
    steps, values = course(rows, alarm)
    outside = (s for s, v in zip(steps, values, strict=True) if alarm.place(v) != "inside")
    return next(outside, None)


def sounding(rows: list[Row], alarms: list[Alarm]) -> list[Sounding]:
    """The alarms that a run gives at its last step."""
    found = []
    for alarm in alarms:
        steps, values = course(rows, alarm)
        inside = [n for n, value in enumerate(values) if alarm.place(value) == "inside"]
        since = inside[-1] + 1 if inside else 0
        if since < len(values):
            found.append(Sounding(alarm=alarm, value=values[-1], since=steps[since]))
    return found
