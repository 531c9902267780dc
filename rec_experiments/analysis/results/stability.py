"""The region of learning rate and age of the data in which each method learns.

A run *fails* if the area under the second half of its curve lies below its first evaluation, so its
`gain` (cells.table) is negative. The *edge* of a method at an age is the lowest rate above its best
one at which it fails: for each seed the rate at which the gain crosses zero, interpolated linearly
in the logarithm of the rate. A seed that fails at no rate of the grid bounds the edge from below,
one that fails at every rate bounds it from above. Intervals are t intervals over seeds of log2.

The columns of the table here: arm, seed, RATE, AGE (the age of the oldest data, in gradient steps),
and the statistics of cells.
"""

import fnmatch
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import pandas
from scipy.optimize import isotonic_regression
from scipy.special import stdtrit

from rec_experiments.analysis.results.seeds import CONFIDENCE, interval_of_mean

RATE, AGE = "optimizer.learning_rate", "sync"
ON_POLICY = 0  # age
EDGES = ["arm", AGE, "seed", "log2", "side"]  # columns of a table of edges


class Mean(NamedTuple):
    """A mean over seeds. bound: ≥ or ≤ if it is only a bound, as some seed lies beyond the grid; ?
    if seeds lie beyond both ends; empty otherwise. interval: None for a bound or a single seed."""

    mean: float
    interval: tuple[float, float] | None
    bound: str


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


def best_rate(table: pandas.DataFrame, arm: str) -> float:
    """The rate at which the method ends highest on-policy, mean over seeds."""
    on_policy = table[(table["arm"] == arm) & (table[AGE] == ON_POLICY)]
    return float(on_policy.groupby(RATE)["final"].mean().idxmax())


def age_survived(table: pandas.DataFrame, arm: str, rate: float) -> int | None:
    """The largest age up to which, age by age, the gain is above 0: the lower end of its interval
    over seeds (a single seed: the gain). None if not even the first."""
    survived = None
    runs = table[(table["arm"] == arm) & (table[RATE] == rate)]
    for age, of_age in runs.groupby(AGE):
        gains = list(of_age["gain"])
        ends = interval_of_mean(gains)
        if (ends[0] if ends else gains[0]) <= 0:
            break
        survived = int(age)
    return survived


def kept(table: pandas.DataFrame, least: float) -> pandas.DataFrame:
    """Per arm, AGE and RATE the mean gain, and as `kept` its share of the same method's on-policy
    gain at the same rate; NaN where that is not known or below `least`, `learns` False if below."""
    mean = table.groupby(["arm", AGE, RATE], sort=False)["gain"].mean().reset_index()
    fresh = mean[mean[AGE] == ON_POLICY].set_index(["arm", RATE])["gain"]
    base = mean.set_index(["arm", RATE]).index.map(fresh).to_numpy(dtype=float)
    mean["kept"] = np.where(base >= least, mean["gain"] / base, np.nan)
    mean["learns"] = ~(base < least)
    return mean


class Law(NamedTuple):
    """log2(edge) = (a method's constant) + slope · log2(age). interval: of the slope over seeds."""

    slope: float
    interval: tuple[float, float] | None
    cells: int


def law(edges: pandas.DataFrame, arms: Collection[str]) -> Law | None:
    """How the edges fall with age: least squares for each seed, a constant per method, over the
    cells with stale data whose edges lie within the grid; then the mean over seeds that all of
    these cells have.

    None for fewer than two such ages.
    """
    stale = within_grid(edges[edges["arm"].isin([*arms]) & (edges[AGE] > ON_POLICY)])
    cells = len(stale[["arm", AGE]].drop_duplicates())
    slopes = []
    for _, of_seed in stale.groupby("seed"):
        if len(of_seed) == cells:
            points = of_seed.assign(age=[math.log2(age) for age in of_seed[AGE]])
            by_arm = points.groupby("arm")[["age", "log2"]]
            centred = points[["age", "log2"]] - by_arm.transform("mean")
            spread = float((centred["age"] ** 2).sum())
            if spread == 0:
                return None
            slopes.append(float((centred["age"] * centred["log2"]).sum()) / spread)
    return Law(float(np.mean(slopes)), interval_of_mean(slopes), cells) if slopes else None


def explained(table: pandas.DataFrame) -> dict[str, float]:
    """How well one falling curve per method describes the gain, of each of four quantities: the
    `rate` alone, `rate × age`, `rate × √age` and the measured `drift` (E[(log ρ)²]).

    The share of the variance of the gain within methods that the best monotone curve explains, over
    stale runs at rates from the best one on; at lower rates a higher rate is more learning. Empty
    if no run has a measured drift.
    """
    parts = []
    for (_, _), runs in table[table[AGE] > ON_POLICY].groupby(["arm", AGE]):
        best = runs.groupby(RATE)["gain"].mean().idxmax()
        parts.append(runs[runs[RATE] >= best])
    stale = pandas.concat(parts).dropna(subset=["drift"])
    if stale.empty:
        return {}
    quantities = {
        "rate": stale[RATE],
        "rate × age": stale[RATE] * stale[AGE],
        "rate × √age": stale[RATE] * np.sqrt(stale[AGE]),
        "drift": stale["drift"],
    }
    return {name: _monotone_r2(stale, values) for name, values in quantities.items()}


def _monotone_r2(runs: pandas.DataFrame, values: pandas.Series) -> float:
    left = total = 0.0
    for _, of_arm in runs.assign(quantity=values).groupby("arm"):
        gains = of_arm["gain"]
        ties = of_arm.groupby("quantity")["gain"].agg(["mean", "size"])  # one value per quantity
        curve = isotonic_regression(ties["mean"], weights=ties["size"], increasing=False).x
        fitted = of_arm["quantity"].map(dict(zip(ties.index, curve, strict=True)))
        left += float(((gains - fitted) ** 2).sum())
        total += float(((gains - gains.mean()) ** 2).sum())
    return 1 - left / total if total else math.nan
