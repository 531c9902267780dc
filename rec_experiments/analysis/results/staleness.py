"""Staleness: how old data can get before a method stops learning. Final accuracy against data age.

Age has two forms. With an *offset* n, every batch comes from the policy n batches ago. With an
*interval* m, the sampler's weights are updated every m batches, so ages run from 0 to m − 1.
On-policy is offset 0 and interval 1. Offline, where all data come from the initial policy, is the
last interval.

A method *survives* an age if its final accuracy exceeds its first evaluation: each seed gives one
difference, and the lower end of their t interval must be above 0. Only ages with all seeds of the
table count, at least two. The reported age is the largest up to which a method survives every age
of the table; if the next age was not run for every seed, it is a lower bound.

If the columns of a sweep are not schedules but, for example, learning rates, there is one form, the
columns in order, and the best column of each method is reported instead.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rec_experiments.analysis.results.aggregate import finished_values, interval_of_mean
from rec_experiments.analysis.results.figure_data import FigureData
from rec_experiments.analysis.results.formatting import text_table
from rec_experiments.analysis.results.runs import Row, Run, releases_text
from rec_experiments.analysis.results.statistics import (
    FINAL_MINUS_INITIAL,
    LAST_POINTS,
    final,
    seconds,
)

METRIC = "eval/accuracy"
OFFLINE = math.inf
FORMS = {"offset": 0, "interval": 1}  # with the on-policy age
COLUMN = "column"  # the form if columns are not schedules


MEANINGS_OF_AGES = (
    "survives   the largest age up to which the method survives every age; ≥ means that the next "
    "age was not run for every seed, – that the first was not",
    "area       mean accuracy over the logarithm of 1 + offset, or of the interval",
)
MEANINGS_OF_COLUMNS = ("best       the column with the highest accuracy, the first of equal ones",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One method at one age. name: the age in words. mean, interval: of the final accuracy over
    seeds. gain, gain_interval: of final − initial, seed by seed. One seed has no interval."""

    age: float
    name: int | str
    seeds: int
    mean: float
    interval: tuple[float, float] | None
    gain: float
    gain_interval: tuple[float, float] | None

    @property
    def survives(self) -> bool:
        """Whether the gain is above 0 for these seeds; `survival` also requires all of them."""
        return self.gain_interval is not None and self.gain_interval[0] > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One method in one form; points by age, at least one."""

    arm: str
    form: str
    points: list[Point]

    @property
    def area(self) -> float | None:
        """Mean accuracy over log(1 + offset) or log(interval) by trapezoids, without offline; None
        for fewer than two ages and for columns. Comparable only over the same ages."""
        finite = [point for point in self.points if math.isfinite(point.age)]
        if self.form == COLUMN or len(finite) < 2:
            return None
        places = np.log([point.age + 1 - FORMS[self.form] for point in finite])
        heights = [point.mean for point in finite]
        return float(np.trapezoid(heights, places) / (places[-1] - places[0]))

    @property
    def best(self) -> Point:
        """The highest point, the first of equal ones."""
        return max(self.points, key=lambda point: point.mean)


def forms(data: FigureData) -> list[str]:
    """The forms of the figure's columns."""
    return list(FORMS) if data.schedules else [COLUMN]


def ages(data: FigureData, form: str) -> list[tuple[float, str]]:
    """The ages of a figure in one form, from the youngest, each with its column. If columns are not
    schedules, their positions."""
    if form == COLUMN:
        return list(enumerate(data.columns))
    return sorted(
        (age, column)
        for column, (interval, offset) in data.schedules.items()
        if (age := _age(form, interval, offset)) is not None
    )


def _age(form: str, interval: int | None, offset: int) -> float | None:
    """The age of a schedule, None if it is not of this form."""
    if form == "offset":
        return offset if interval == 1 else None
    if interval is None:
        return OFFLINE
    return None if offset else interval


def lines(data: FigureData, form: str) -> list[Line]:
    """A line for each method with a finished run, in the figure's order."""
    found = (Line(arm=arm, form=form, points=list(_points(data, arm, form))) for arm in data.arms)
    return [line for line in found if line.points]


def _points(data: FigureData, arm: str, form: str) -> Iterator[Point]:
    for age, column in ages(data, form):
        runs = data.select(arm, column)
        ends = list(finished_values(runs, final, METRIC).values.values())
        gains = list(finished_values(runs, FINAL_MINUS_INITIAL.of, METRIC).values.values())
        if ends:
            yield Point(
                age=age,
                name=_written(form, age, column),
                seeds=len(ends),
                mean=float(np.mean(ends)),
                interval=interval_of_mean(ends),
                gain=float(np.mean(gains)),
                gain_interval=interval_of_mean(gains),
            )


def start(data: FigureData) -> float | None:
    """Mean of the first evaluation over all finished runs."""
    values = [run.rows[0][METRIC] for run in data.runs if run.done and METRIC in run.rows[0]]
    return float(np.mean(values)) if values else None


def milliseconds_a_step(runs: list[Run]) -> float | None:
    """Median over finished runs of the time per gradient step, with rollouts and evaluations. It
    depends on the machine and its load, and rollouts reused from another job take no time."""
    found = [1000 * seconds(run.rows) / run.last_step for run in runs if run.done and run.last_step]
    return float(np.median(found)) if found else None


def summary(data: FigureData) -> dict[str, Any]:
    """Everything as plain values, for the files beside the picture and the pages of the docs."""
    seeds = sorted({run.seed for run in data.runs if run.done})
    names = {form: [_written(form, *each) for each in ages(data, form)] for form in forms(data)}
    return {
        "figure": data.name,
        "title": data.title,
        "scale": data.scale,
        "seeds": seeds,
        "claim_seeds": data.claim_seeds and len(data.claim_seeds),
        "start": start(data),
        "final": LAST_POINTS,
        "finished": sum(run.done for run in data.runs),
        "releases": releases_text(data.runs),
        "ages": names,
        "methods": {
            arm: {
                "milliseconds_a_step": milliseconds_a_step(
                    [run for run in data.runs if run.arm == arm]
                ),
                **{line.form: _plain(line, names[line.form], len(seeds)) for line in of_arm},
            }
            for arm, of_arm in _by_arm(data).items()
        },
    }


def _by_arm(data: FigureData) -> Mapping[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for form in forms(data):
        for line in lines(data, form):
            found.setdefault(line.arm, []).append(line)
    return {arm: found[arm] for arm in data.arms if arm in found}


def _plain(line: Line, ages: list[int | str], seeds: int) -> dict[str, Any]:
    points = [
        {
            "age": point.name,
            "seeds": point.seeds,
            "mean": point.mean,
            "interval": point.interval,
            "gain": point.gain,
            "gain_interval": point.gain_interval,
            "survives": point.survives,
        }
        for point in line.points
    ]
    survives, beyond = (None, "none") if line.form == COLUMN else survival(points, ages, seeds)
    return {
        "survives": survives,
        "beyond": beyond,
        "area": line.area,
        "best": line.best.name,
        "points": points,
    }


def survival(
    points: list[dict[str, Any]], ages: list[int | str], seeds: int
) -> tuple[int | str | None, str]:
    """The largest age up to which a method survives every age of the table, None without one, and
    the state of the next age: `failed`, `unknown`, or `none` if there is no next."""
    by_age = {point["age"]: point for point in points}
    survived = None
    for age in ages:
        if age not in by_age or not _decides(by_age[age], seeds):
            return survived, "unknown"
        if not by_age[age]["survives"]:
            return survived, "failed"
        survived = age
    return survived, "none"


def _decides(point: dict[str, Any], seeds: int) -> bool:
    """Whether the point has all seeds of the table, and an interval."""
    return point["seeds"] == seeds and point["gain_interval"] is not None


def _written(form: str, age: float, column: str) -> int | str:
    if form == COLUMN:
        return column
    return "offline" if math.isinf(age) else int(age)


def age_name(form: str, age: int | str) -> str:
    """As in `interval 20`."""
    return str(age) if form == COLUMN or age == "offline" else f"{form} {age}"


def survived(found: dict[str, Any], line: dict[str, Any], form: str) -> str:
    """The age that a method survives: `20`, `≥ 20` if the next age is unknown, `none`, or `–` if
    nothing is known."""
    age, beyond = survival(line["points"], found["ages"][form], len(found["seeds"]))
    if age is None:
        return "none" if beyond == "failed" else "–"
    return f"≥ {age}" if beyond == "unknown" else str(age)


def shown(found: dict[str, Any]) -> list[str]:
    """The forms to show: those with any age besides on-policy, which is the same in both forms. If
    there is none, the first."""
    telling = [form for form, ages in found["ages"].items() if ages not in ([], [FORMS.get(form)])]
    return telling or list(found["ages"])[:1]


def survived_in_words(found: dict[str, Any], method: dict[str, Any]) -> str:
    """As in `offset 10 and interval ≥ 20`, `none`, or `not known`."""
    forms = [form for form in shown(found) if form in FORMS and form in method]
    ends = {form: survived(found, method[form], form) for form in forms}
    ages = [age_name(form, end) for form, end in ends.items() if end not in ("none", "–")]
    nothing = "none" if "none" in ends.values() else "not known"
    return " and ".join(ages) or nothing


def table(found: dict[str, Any], form: str, cost: bool = False) -> list[list[str]]:
    """Head and one row per method, the largest area first, or the highest best column.

    cost: with the time of a step.
    """
    columns = found["ages"][form]
    ends = ["best"] if form == COLUMN else ["survives", "area"]
    head = ["method", *(age_name(form, age) for age in columns), *ends, *["ms a step"] * cost]
    methods = {arm: each for arm, each in found["methods"].items() if form in each}
    areas = any(each[form]["area"] is not None for each in methods.values())
    order = sorted(methods, key=lambda arm: -_height(methods[arm][form], form, areas))
    return [
        head,
        *(
            [
                arm,
                *_cells(methods[arm][form], columns, len(found["seeds"])),
                *_ends(found, methods[arm][form], form),
                *[_milliseconds(methods[arm])] * cost,
            ]
            for arm in order
        ),
    ]


def _height(line: dict[str, Any], form: str, areas: bool) -> float:
    """The key by which a table is sorted. areas: whether any method has an area. If none has, it is
    the accuracy at the oldest age; a single method without one is sorted by its first age."""
    means = [point["mean"] for point in line["points"]]
    if form == COLUMN:
        return max(means)
    if line["area"] is not None:
        return line["area"]
    return means[0] if areas else means[-1]


def _cells(line: dict[str, Any], columns: list[int | str], seeds: int) -> list[str]:
    by_age = {point["age"]: point for point in line["points"]}
    return [_cell(by_age[age], seeds) if age in by_age else "–" for age in columns]


def _cell(point: dict[str, Any], seeds: int) -> str:
    """The accuracy, in brackets if the method does not survive; with the number of seeds if some
    are missing."""
    fails = _decides(point, seeds) and not point["survives"]
    text = f"({accuracy(point)})" if fails else accuracy(point)
    return text if point["seeds"] == seeds else f"{text} n={point['seeds']}"


def accuracy(point: dict[str, Any]) -> str:
    """Mean ± half of its interval."""
    interval = point["interval"]
    return f"{point['mean']:.3f}" + (
        f" ± {(interval[1] - interval[0]) / 2:.3f}" if interval else ""
    )


def _ends(found: dict[str, Any], line: dict[str, Any], form: str) -> list[str]:
    if form == COLUMN:
        return [line["best"]]
    return [
        survived(found, line, form),
        "–" if line["area"] is None else f"{line['area']:.3f}",
    ]


def _milliseconds(method: dict[str, Any]) -> str:
    cost = method["milliseconds_a_step"]
    return "–" if cost is None else f"{cost:.0f}"


def tidy(data: FigureData) -> list[Row]:
    """One row per finished run and form: the data of the picture."""
    return [
        {
            "arm": run.arm,
            "form": form,
            "age": _written(form, age, column),
            "seed": run.seed,
            "final": final(run.rows, METRIC),
            "initial": run.rows[0][METRIC],
        }
        for form in forms(data)
        for age, column in ages(data, form)
        for run in data.runs
        if run.column == column and run.done
    ]


def text(found: dict[str, Any]) -> str:
    """The tables as text."""
    parts = [found["title"], ""]
    for form in found["ages"]:
        parts += [*text_table(table(found, form, cost=True)), ""]
    parts += [
        f"{found['finished']} finished runs, seeds {', '.join(map(str, found['seeds']))}; "
        f"claims need {found['claim_seeds']}.",
        "accuracy ± half of its 95 % t interval; in brackets if the interval of final − initial is "
        "not above 0; n= if seeds are missing, and then the age does not count",
        *(MEANINGS_OF_COLUMNS if COLUMN in found["ages"] else MEANINGS_OF_AGES),
        "ms a step  median over runs, with rollouts and evaluations; it depends on the machine and "
        "its load, and is accurate to a factor of two",
    ]
    return "\n".join(parts) + "\n"
