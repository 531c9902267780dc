"""How methods stand the age of their data, or another axis: accuracy against it, and what follows.

Two forms. As an *offset* n every batch comes from the policy n batches ago. As an *interval* m the
sampler's weights are renewed every m batches, so that ages run from 0 to m − 1. On-policy is offset
0 and interval 1; offline, where all data come from the initial policy, ends the intervals.

A method *survives* an age if its final accuracy lies above its first evaluation: each seed gives
one difference, and the lower end of their t interval is above 0. That is decided by all seeds of
the table, two or more: the interval over the first two of ten is too wide for any method. How much
it survives is the largest age up to which it survives all ages of the table, so that a lucky old
age counts for nothing. Where the next age was not run, or not with all seeds, it may be more.

A sweep whose columns are no schedules has one form, its columns in their order: learning rates, or
shares of flipped rewards. There the best column of each method is named instead.
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
FORMS = {"offset": 0, "interval": 1}  # of age, with what on-policy is called in each
COLUMN = "column"  # the form of columns that are no schedules


MEANINGS_OF_AGES = (
    "survives   the largest age up to which the method survives every age; ≥ where the next one is "
    "not decided, – where the first is not",
    "area       mean accuracy over the ages, on the logarithm of 1 + offset or of the interval",
)
MEANINGS_OF_COLUMNS = ("best       the column with the highest accuracy, the first of equals",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One method at one age. name: the age as it is written. mean, interval: of its final accuracy
    over seeds. gain: the same of final − initial, seed by seed. An interval is None for a single
    seed."""

    age: float
    name: int | str
    seeds: int
    mean: float
    interval: tuple[float, float] | None
    gain: float
    gain_interval: tuple[float, float] | None

    @property
    def survives(self) -> bool:
        """As far as these seeds say; `survival` asks for all of them."""
        return self.gain_interval is not None and self.gain_interval[0] > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One method in one form, its points by age; never empty."""

    arm: str
    form: str
    points: list[Point]

    @property
    def area(self) -> float | None:
        """Mean of the accuracy over the ages, by trapezoids on log(1 + offset) or log(interval),
        offline left out; None with fewer than two ages, and for columns. A mean: it compares over
        equal ages only.
        """
        finite = [point for point in self.points if math.isfinite(point.age)]
        if self.form == COLUMN or len(finite) < 2:
            return None
        places = np.log([point.age + 1 - FORMS[self.form] for point in finite])
        heights = [point.mean for point in finite]
        return float(np.trapezoid(heights, places) / (places[-1] - places[0]))

    @property
    def best(self) -> Point:
        """The highest; the first of equals."""
        return max(self.points, key=lambda point: point.mean)


def forms(data: FigureData) -> list[str]:
    """In which the figure's columns are read."""
    return list(FORMS) if data.schedules else [COLUMN]


def ages(data: FigureData, form: str) -> list[tuple[float, str]]:
    """The ages that a figure has in one form, from the youngest, each with its column. For columns
    that are no schedules these are their places."""
    if form == COLUMN:
        return list(enumerate(data.columns))
    return sorted(
        (age, column)
        for column, (interval, offset) in data.schedules.items()
        if (age := _age(form, interval, offset)) is not None
    )


def _age(form: str, interval: int | None, offset: int) -> float | None:
    """None for a schedule that is not of this form."""
    if form == "offset":
        return offset if interval == 1 else None
    if interval is None:
        return OFFLINE
    return None if offset else interval


def lines(data: FigureData, form: str) -> list[Line]:
    """Every method that has a finished run, in the figure's order."""
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
    """Median over finished runs of the time that a gradient step took, drawing included, and
    evaluation where it was due. Of the machine that made the runs, beside whatever else ran there;
    what another job of a local sweep had drawn already took no time.
    """
    found = [1000 * seconds(run.rows) / run.last_step for run in runs if run.done and run.last_step]
    return float(np.median(found)) if found else None


def summary(data: FigureData) -> dict[str, Any]:
    """All as plain values, for the files beside the picture and for the pages of the docs."""
    seeds = sorted({run.seed for run in data.runs if run.done})
    names = {form: [_written(form, *each) for each in ages(data, form)] for form in forms(data)}
    return {
        "figure": data.name,
        "title": data.title,
        "scale": data.scale,
        "seeds": seeds,
        "claim_seeds": data.claim_seeds,
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
    """The largest age up to which all ages of the table are survived, None without one, and what
    comes next: an age that is `failed` or `unknown`, or `none`.

    Of the points of a summary, which may be an older one that does not say what comes next.
    """
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
    """Whether it has all seeds of the table, and an interval over them."""
    return point["seeds"] == seeds and point["gain_interval"] is not None


def _written(form: str, age: float, column: str) -> int | str:
    if form == COLUMN:
        return column
    return "offline" if math.isinf(age) else int(age)


def age_name(form: str, age: int | str) -> str:
    """As in `interval 20`."""
    return str(age) if form == COLUMN or age == "offline" else f"{form} {age}"


def survived(found: dict[str, Any], line: dict[str, Any], form: str) -> str:
    """How much a method of a summary survives: `20`, `≥ 20` where it is not known beyond, `none`,
    or `–` where nothing is known."""
    age, beyond = survival(line["points"], found["ages"][form], len(found["seeds"]))
    if age is None:
        return "none" if beyond == "failed" else "–"
    return f"≥ {age}" if beyond == "unknown" else str(age)


def shown(found: dict[str, Any]) -> list[str]:
    """The forms of a summary that say something of their own: those with several ages, or one that
    is not on-policy, which is the same in any form. If there is none, one of all."""
    telling = [form for form, ages in found["ages"].items() if ages not in ([], [FORMS.get(form)])]
    return telling or list(found["ages"])[:1]


def survived_in_words(found: dict[str, Any], method: dict[str, Any]) -> str:
    """In the forms shown, as in `offset 10 and interval ≥ 20`, `none`, or `not known`."""
    forms = [form for form in shown(found) if form in FORMS and form in method]
    ends = {form: survived(found, method[form], form) for form in forms}
    ages = [age_name(form, end) for form, end in ends.items() if end not in ("none", "–")]
    nothing = "none" if "none" in ends.values() else "not known"
    return " and ".join(ages) or nothing


def table(found: dict[str, Any], form: str, cost: bool = False) -> list[list[str]]:
    """Head and one row a method, the largest area first; of columns, the highest at its best.

    cost: with the time of a step, which is that of a machine and of what else ran there.
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
    """What a table is sorted by. areas: whether any method has one. Where none has, the accuracy at
    the oldest age; a method without one stands among others by the age that an area would hold."""
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
    """The accuracy, in brackets where the method does not survive; its seeds if these are fewer,
    and then nothing is decided."""
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
    """One row a finished run and form: what the picture is made of."""
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
        "accuracy ± half of its 95 % t interval; in brackets where final − initial is not above 0 "
        "by its interval over seeds; n= where seeds are missing, which decides nothing",
        *(MEANINGS_OF_COLUMNS if COLUMN in found["ages"] else MEANINGS_OF_AGES),
        "ms a step  median over runs, drawing and evaluation included, on the machine they ran on "
        "beside whatever else ran there: good for a factor of two",
    ]
    return "\n".join(parts) + "\n"
