"""Gains of a figure's runs, and the region of learning rate and age in which each method learns.

A run *fails* if the area under the second half of its curve lies below its first evaluation, so its
`gain` is negative. The *edge* of a method at an age is the lowest rate above its best one at which
it fails: for each seed the rate at which the gain crosses zero, interpolated linearly in the
logarithm of the rate. A seed that fails at no rate of the grid bounds the edge from below, one that
fails at every rate bounds it from above. Intervals are t intervals over seeds of log2.

The columns of the table here: arm, seed, RATE, AGE (the age of the oldest data, in gradient steps),
and `gain`.
"""

import fnmatch
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas
from scipy.special import stdtrit

from rec_experiments.analysis.results.figure import FigureRuns
from rec_experiments.analysis.results.statistics import (
    ACCURACY,
    CONFIDENCE,
    curve,
    initial,
    interval_of_mean,
    second_half,
)
from rec_experiments.common.errors import UserError
from rec_experiments.config.settings import oldest_age, settings

RATE, AGE = "optimizer.learning_rate", "sync"
ON_POLICY = 0  # age
BASE = "REINFORCE"  # edges are written as multiples of its edge
NONE = "none"  # how a table writes null, as in a clip without a bound
EDGES = ["arm", AGE, "seed", "log2", "side"]  # columns of a table of edges


# Gains --------------------------------------------------------------------------------------------


def gains(data: FigureRuns, keys: Sequence[str]) -> pandas.DataFrame:
    """One row per finished run: arm, the values of the keys, seed, `initial` (the first
    evaluation), `second_half` (the mean of those in the second half of the steps) and `gain`, their
    difference.

    keys: of the experiment's settings; `column`, the heading of the figure's column; AGE. Raises
    UserError if runs of one seed share a cell, because they differ in a key that is not listed.
    """
    done = data.runs[data.runs["state"] == "done"]
    found = done[["arm", "column", "seed"]].copy()
    for key in keys:
        if key != "column":
            found[key] = [_value(overrides, key) for overrides in done["overrides"]]
    if found.duplicated(["arm", *keys, "seed"]).any():
        raise UserError(
            f"{data.name}: several runs of one seed would share a cell of the map; give every key "
            f"but seed and {', '.join(keys)} a single value"
        )
    curves = {run: curve(rows, ACCURACY) for run, rows in data.steps.groupby("run", sort=False)}
    found["initial"] = [initial(curves[run]) for run in done["run"]]
    found["second_half"] = [second_half(curves[run]) for run in done["run"]]
    found["gain"] = found["second_half"] - found["initial"]
    return found[["arm", *keys, "seed", "initial", "second_half", "gain"]]


def _value(overrides: str, key: str) -> Any:
    found = settings(overrides)
    value = oldest_age(found) if key == AGE else found.get(key)
    return NONE if value is None else value


def against(table: pandas.DataFrame, arm: str, keys: Sequence[str]) -> pandas.DataFrame:
    """The rows of other arms, with the `difference` of their gain to that of `arm` at the same keys
    and seed; rows without such a counterpart are left out."""
    base = table[table["arm"] == arm][[*keys, "seed", "gain"]]
    paired = table[table["arm"] != arm].merge(base, on=[*keys, "seed"], suffixes=("", "_of_base"))
    return paired.assign(difference=paired["gain"] - paired.pop("gain_of_base"))


def with_on_policy(table: pandas.DataFrame, alike: dict[str, str]) -> pandas.DataFrame:
    """The table, where methods without on-policy runs have those of the method they coincide with.

    alike: a pattern of arms, with * for any text, to the arm whose runs they share.
    """
    fresh = table[table[AGE] == ON_POLICY]
    added = [
        fresh[fresh["arm"] == source].assign(arm=arm)
        for pattern, source in alike.items()
        for arm in fnmatch.filter(list(table["arm"].unique()), pattern)
        if arm not in set(fresh["arm"])
    ]
    return pandas.concat([table, *added], ignore_index=True)


def kept(table: pandas.DataFrame, least: float) -> pandas.DataFrame:
    """Per arm, AGE and RATE the mean gain, and as `kept` its share of the same method's on-policy
    gain at the same rate; NaN where that is not known or below `least`, `learns` False if below."""
    mean = table.groupby(["arm", AGE, RATE], sort=False)["gain"].mean().reset_index()
    fresh = mean[mean[AGE] == ON_POLICY].set_index(["arm", RATE])["gain"]
    base = mean.set_index(["arm", RATE]).index.map(fresh).to_numpy(dtype=float)
    mean["kept"] = np.where(base >= least, mean["gain"] / base, np.nan)
    mean["learns"] = ~(base < least)
    return mean


# Edges --------------------------------------------------------------------------------------------


class Mean(NamedTuple):
    """A mean over seeds. bound: ≥ or ≤ if it is only a bound, as some seed lies beyond the grid; ?
    if seeds lie beyond both ends; empty otherwise. interval: None for a bound or a single seed."""

    mean: float
    interval: tuple[float, float] | None
    bound: str


def crossing(rates: Sequence[float], gains: Sequence[float]) -> float:
    """log2 of the rate at which gains, from their maximum on, fall below 0.

    rates: ascending. Infinite if the gain stays above 0, minus infinite if it never is.
    """
    places = np.log2(rates)
    best = int(np.argmax(gains))
    if gains[best] <= 0:
        return -math.inf
    for at in range(best + 1, len(gains)):
        if gains[at] < 0:
            share = gains[at - 1] / (gains[at - 1] - gains[at])
            return float(places[at - 1] + share * (places[at] - places[at - 1]))
    return math.inf


def edges(table: pandas.DataFrame) -> pandas.DataFrame:
    """log2 of the edge of each method at each age and seed, with the columns EDGES.

    side: 1 for a seed that fails at no rate, −1 for one that fails at every rate, and then log2 is
    that end of the grid; otherwise 0. Only seeds that have every rate of the cell count.
    """
    found = []
    for (arm, age), runs in table.groupby(["arm", AGE], sort=False):
        gains = runs.pivot_table(index="seed", columns=RATE, values="gain").sort_index(axis=1)
        rates = [*gains.columns]
        if len(rates) > 1:
            for seed, row in gains.dropna().iterrows():
                at = crossing(rates, [*row])
                inside = min(max(at, math.log2(rates[0])), math.log2(rates[-1]))
                found.append((arm, age, seed, inside, (at == math.inf) - (at == -math.inf)))
    return pandas.DataFrame(found, columns=EDGES)


def mean(logs: pandas.Series, sides: pandas.Series) -> Mean:
    """The mean over seeds of numbers, some of which may be bounds: from below where `sides` is
    positive, from above where it is negative."""
    above, below = bool((sides > 0).any()), bool((sides < 0).any())
    bound = "?" if above and below else "≥" if above else "≤" if below else ""
    return Mean(float(np.mean(logs)), None if bound else interval_of_mean([*logs]), bound)


def means(edges: pandas.DataFrame) -> dict[tuple[str, int], Mean]:
    """The mean edge, as log2, of each method at each age."""
    cells = edges.groupby(["arm", AGE], sort=False)
    return {cell: mean(of_cell["log2"], of_cell["side"]) for cell, of_cell in cells}


def multiple(one: pandas.DataFrame, other: pandas.DataFrame) -> Mean | None:
    """log2 of the edges of one cell ÷ those of another, paired by seed. None if nothing is known:
    there is no common seed, or seeds bound it from both sides."""
    pairs = one.merge(other, on="seed", suffixes=("", "_of_other"))
    if pairs.empty:
        return None
    sides = pandas.concat([pairs["side"], -pairs["side_of_other"]])
    found = mean(pairs["log2"] - pairs["log2_of_other"], sides)
    return None if found.bound == "?" else found


def pooled_factor(edges: pandas.DataFrame, age: int) -> float | None:
    """The half-width of a multiple's 95 % interval, as a factor, if all methods have the same
    variance: from what log2 of the edges at that age leaves after a mean for each method and one
    for each seed. Edges outside the grid are left out; None for fewer than two methods or seeds.
    """
    inside = within_grid(edges[edges[AGE] == age])
    logs = inside.pivot_table(index="arm", columns="seed", values="log2", sort=False)
    log2 = logs.dropna(axis=1).to_numpy()  # [methods, seeds]
    methods, seeds = log2.shape
    if methods < 2 or seeds < 2:
        return None
    left = log2 - log2.mean(0) - log2.mean(1, keepdims=True) + log2.mean()
    freedom = (methods - 1) * (seeds - 1)
    error = math.sqrt(float((left**2).sum()) / freedom * 2 / seeds)
    return 2.0 ** (float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error)


def within_grid(edges: pandas.DataFrame) -> pandas.DataFrame:
    """The edges of the cells whose seeds all have their edge within the grid."""
    outside = edges["side"].abs().groupby([edges["arm"], edges[AGE]]).transform("max")
    return edges[outside == 0]


# The map as a table -------------------------------------------------------------------------------


def edge_table(edges: pandas.DataFrame) -> pandas.DataFrame:
    """A row for each method and age with an edge, as READING explains."""
    cells = dict(iter(edges.groupby(["arm", AGE], sort=False)))
    factors = {age: pooled_factor(edges, age) for age in edges[AGE].unique()}
    rows = []
    for (arm, age), cell in cells.items():
        row = {"arm": arm, "age": age, "seeds": len(cell)}
        of_base = multiple(cell, cells.get((BASE, age), cell[:0]))
        for name, each in (("rate", mean(cell["log2"], cell["side"])), ("multiple", of_base)):
            middle, ends, bound = each or (math.nan, None, "")
            low, high = np.exp2(ends or (math.nan,) * 2)
            row |= {f"{name} is": bound or "=", name: 2.0**middle}
            row |= {f"{name}_low": low, f"{name}_high": high}
        rows.append(row | {"pooled factor": factors[age] or math.nan})
    return pandas.DataFrame(rows)


READING = (
    f"rate: the lowest at which a method fails; multiple: of the rate of {BASE} at the same age, "
    "paired by seed; both with their 95 % t interval over seeds. ≥ and ≤ mark bounds, where the "
    "edge of a seed is outside the grid. pooled factor: how far the interval of every multiple "
    "reaches either way, if all methods have the same variance."
)
