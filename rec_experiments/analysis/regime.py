"""The regime of runs: how far the policy moves between generating and using a sample, next to
published values.

Everything here is a function of rows of the table of runs: one section for each column of the
table, with one line for each arm. A number of an arm is the mean over its runs of the number of
each run. The lag of a row is the number of gradient steps since its batch was generated.
"""

import math
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import yaml

from rec_experiments.analysis.results.formatting import text_table
from rec_experiments.analysis.results.table import table
from rec_experiments.common.files import ARCHIVE
from rec_experiments.config.settings import settings
from rec_experiments.runs.metrics import title

Lags = tuple[int, int | None]  # first and last, both included; None for no last
Blocks = dict[str, pandas.DataFrame]  # by title: a table of texts with one line for each arm

FILE = Path(__file__).with_name("published") / "regime.yaml"
PARTS = ("start", "middle", "end")
SHARE = 10  # a part is a tenth of the points of a run
MOST_LAGS = 6  # that a table shows
PERCENT = ("clip_fraction", "live_groups", "distinct_responses", "truncated")  # shown in per cent
BY_LAG = ("clip_fraction", "log_ratio_second_moment", "ess", "ratio_p01", "ratio_p99")
BY_PART = ("kl", "kl_response", "entropy", "grad_norm", "response_length", "truncated")
OF_BATCHES = ("live_groups", "distinct_responses")
QUANTITIES = (*BY_LAG, *BY_PART, *OF_BATCHES)
COMPARED = "published values, and these arms beside them"
WIDTH = 100  # characters of a line of text


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """name: in words. quantity: a key of metrics.jsonl without `train/`. low, high: ends of the
    range in the unit in which the quantity is shown, null for none."""

    name: str
    quantity: str
    low: float | None
    high: float | None

    def place(self, value: float) -> str:
        """Whether a value lies below, inside or above the range."""
        if self.low is not None and value < self.low:
            return "below"
        return "above" if self.high is not None and value > self.high else "inside"

    @property
    def span(self) -> str:
        """As in `at most 0.1` or `0.01 to 0.1`."""
        low, high = (None if end is None else number(end) for end in (self.low, self.high))
        if low is None or high is None:
            return f"at most {high}" if low is None else f"at least {low}"
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Published(Range):
    """A published value. lags: those it is for, null for all. part: start, middle or end; null for
    the whole run. arms: settings that an arm must have to be compared. source, setting: where it
    was published and for which run. read: from a table, text, log file or figure (roughly).
    checked: when it was last compared with the source, null if never. note: how its definition
    differs from ours."""

    lags: Lags | None
    part: str | None
    arms: dict[str, Any]
    source: str
    setting: str
    read: str
    checked: str | None
    note: str | None

    @property
    def where(self) -> str:
        """As in `entropy at lag 1 to 3 at the end`."""
        first, last = self.lags or (0, 0)
        lags = f" at lag {first}" + (" and more" if last is None else f" to {last}")
        part = f" at the {self.part}" if self.part else ""
        return named(self.quantity) + (lags if self.lags else "") + part

    @property
    def sentence(self) -> str:
        checked = f"checked {self.checked}" if self.checked else "not checked"
        text = f"{self.name}: {self.setting}. {self.source}; {self.read}, {checked}."
        return f"{text} {self.note or ''}".rstrip()


PUBLISHED = tuple(
    Published(**{**entry, "lags": entry["lags"] and tuple(entry["lags"])})
    for entry in yaml.load(FILE.read_text(encoding="utf-8"), yaml.CSafeLoader)
)


# Numbers ------------------------------------------------------------------------------------------


def measured(steps: pandas.DataFrame) -> pandas.DataFrame:
    """Each row's arm, run, column and step, its lag, and QUANTITIES in the units in which they are
    shown. What is not finite is NaN, as is the lag of a row whose responses have several lags.

    steps: rows of the table of runs.
    """
    staleness = ["staleness", "staleness_min", "staleness_max"]
    names = [*staleness, *QUANTITIES]
    found = steps.reindex(columns=[f"train/{name}" for name in names]).set_axis(names, axis=1)
    found = found.astype(float).replace([np.inf, -np.inf], np.nan)
    found[[*PERCENT]] *= 100
    mean, low, high = (found.pop(name) for name in staleness)
    found["lag"] = mean.where(low.fillna(mean) == high.fillna(mean))
    return steps[["arm", "run", "column", "step"]].join(found)


def means(
    rows: pandas.DataFrame, quantity: str, lags: Lags | None = None, part: str | None = None
) -> pandas.Series:
    """The mean of a quantity at these lags and in this part of a run, by arm: first over the rows
    of each run, then over the runs that have it. rows: as of `measured`."""
    values = rows[quantity].dropna()
    if lags:
        values = values[rows["lag"].between(lags[0], math.inf if lags[1] is None else lags[1])]
    by_run = values.groupby([rows["arm"], rows["run"]], sort=False)
    of_runs = by_run.mean() if part is None else by_run.agg(lambda each: _part(each, part).mean())
    return of_runs.groupby("arm", sort=False).mean()


def _part(values: pandas.Series, part: str) -> pandas.Series:
    """The first, middle or last tenth of the points, at least one."""
    size = max(1, round(len(values) / SHARE))
    start = PARTS.index(part) * (len(values) - size) // 2
    return values.iloc[start : start + size]


def spread(lags: set[int]) -> list[int]:
    """At most MOST_LAGS of the lags: all, or the first two and then evenly spaced ones, rounded
    down, to the last."""
    ordered = sorted(lags)
    if len(ordered) <= MOST_LAGS:
        return ordered
    even = np.linspace(0, ordered[-1], MOST_LAGS - 1)[1:]
    nearest = [max(lag for lag in ordered if lag <= max(point, ordered[0])) for point in even]
    return sorted({*ordered[:2], *nearest})


def value_here(rows: pandas.DataFrame, published: Published) -> pandas.Series:
    """The numbers of the arms. An arm has none unless the last lag occurs more than once in a run:
    the steps at which the lags first build up are not comparable."""
    found = means(rows, published.quantity, published.lags, published.part)
    last = published.lags[1] if published.lags else None
    if last is None:
        return found
    times = (rows["lag"] == last).groupby([rows["arm"], rows["run"]]).sum()
    return found[times.groupby("arm").max().reindex(found.index) > 1]


# Tables -------------------------------------------------------------------------------------------


def tables(runs: pandas.DataFrame) -> dict[str, Blocks]:
    """The tables of each column of a figure, or of each schedule. runs: of the table of runs; those
    of an archive, which has no single gradient steps, are left out. Arms whose settings are not
    known are not compared with published values."""
    in_folders = runs[[not Path(path).parent.name.endswith(ARCHIVE) for path in runs["path"]]]
    known = in_folders[in_folders["experiment"] != ""]
    overrides = known.groupby("arm", sort=False)["overrides"].first().to_dict()
    columns = measured(table(in_folders)).groupby("column", sort=False)
    return {str(column): _tables(rows, overrides) for column, rows in columns}


def _tables(rows: pandas.DataFrame, overrides: dict[str, str]) -> Blocks:
    """Tables with a number; columns without one are left out."""
    arms = rows.groupby("arm", sort=False)
    about = {"seeds": arms["run"].nunique(), "steps": arms["step"].max()}
    found = {"runs": about | {named(each): means(rows, each) for each in OF_BATCHES}}
    lags = spread({int(lag) for lag in rows["lag"].dropna()})
    for each in BY_LAG:
        at_lags = {f"lag {lag}": means(rows, each, (lag, lag)) for lag in lags}
        found[named(each)] = {"all": means(rows, each), **at_lags}
    for each in BY_PART:
        found[named(each)] = {part: means(rows, each, None, part) for part in PARTS}
    frames = {
        name: pandas.DataFrame(each, index=[*arms.groups]).dropna(axis="columns", how="all")
        for name, each in found.items()
    }
    texts = {name: each.map(number) for name, each in frames.items() if len(each.columns)}
    compared = _compared(rows, overrides)
    return texts | ({COMPARED: compared} if len(compared) else {})


def _compared(rows: pandas.DataFrame, overrides: dict[str, str]) -> pandas.DataFrame:
    """Published values and the arms that they can be compared with."""
    lines = []
    for each in PUBLISHED:
        for arm, value in value_here(rows, each).items():
            here = settings(overrides[arm]) if arm in overrides else {}
            if here and all(here.get(key) == wanted for key, wanted in each.arms.items()):
                about = (each.name, each.where, each.span, arm, number(value), each.place(value))
                lines.append(about)
    head = ["published", "quantity", "range", "arm", "here", "place"]
    return pandas.DataFrame(lines, columns=head).set_index("published")


# Text ---------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """With two or three significant digits; "-" for what is no number."""
    if not math.isfinite(value):
        return "-"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if 100 <= abs(value) < 1e6:
        return f"{value:.0f}"
    return f"{value:.2g}" if abs(value) < 1 else f"{value:.3g}"


def named(quantity: str) -> str:
    """The title of a quantity, with the unit in which it is shown."""
    return title(f"train/{quantity}") + (", %" if quantity in PERCENT else "")


def text(found: dict[str, Blocks]) -> str:
    """Plain text, for a terminal and the file beside a figure."""
    lines, used = [], set()
    for section, tables_of_section in found.items():
        lines += [section or "all runs", ""]
        for name, shown_table in tables_of_section.items():
            used |= {*shown_table.index}
            body = shown_table.reset_index().to_numpy().tolist()
            rows = text_table([["", *shown_table], *body])
            lines += [f"  {name}", *(f"    {row}" for row in rows), ""]
    for each in PUBLISHED:
        if each.name in used:
            lines += textwrap.wrap(each.sentence, WIDTH, subsequent_indent="    ")
    return "\n".join(lines).rstrip() + "\n"
