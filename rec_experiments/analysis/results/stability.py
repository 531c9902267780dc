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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas
from scipy.optimize import isotonic_regression
from scipy.special import stdtrit

from rec_experiments.analysis.results.aggregate import CONFIDENCE, interval_of_mean

RATE, AGE = "optimizer.learning_rate", "sync"
ON_POLICY = 0  # age


@dataclass(frozen=True, slots=True)
class Edge:
    """edges: log2 of the edge by seed. above_grid: seeds that fail at no rate. below_grid: seeds
    that fail at every rate. Their entries in `edges` are the ends of the grid."""

    edges: dict[int, float]
    above_grid: frozenset[int]
    below_grid: frozenset[int]

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.edges.values())))

    @property
    def inside(self) -> bool:
        """Whether every seed has its edge within the grid."""
        return not self.above_grid and not self.below_grid

    @property
    def bound(self) -> str:
        """≥ or ≤ if the mean bounds the edge from below or above, ? if it says nothing, because
        seeds lie at both ends; empty for an edge within the grid."""
        return _bound(bool(self.above_grid), bool(self.below_grid))

    @property
    def interval(self) -> tuple[float, float] | None:
        """None for a single seed, or if some seed's edge is outside the grid."""
        return interval_of_mean(list(self.edges.values())) if self.inside else None


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


def edge(runs: pandas.DataFrame) -> Edge | None:
    """The edge of one method at one age. runs: the table's rows of that cell, any rates.

    Only seeds that have every rate of the cell count; None without one.
    """
    gains = runs.pivot_table(index="seed", columns=RATE, values="gain").sort_index(axis=1).dropna()
    if gains.empty or gains.shape[1] < 2:
        return None
    rates = list(gains.columns)
    found = {int(seed): crossing(rates, list(row)) for seed, row in gains.iterrows()}
    ends = math.log2(rates[0]), math.log2(rates[-1])
    return Edge(
        edges={seed: float(np.clip(value, *ends)) for seed, value in found.items()},
        above_grid=frozenset(seed for seed, value in found.items() if value == math.inf),
        below_grid=frozenset(seed for seed, value in found.items() if value == -math.inf),
    )


def edges(table: pandas.DataFrame) -> dict[tuple[str, int], Edge]:
    """The edge of each method at each age, where there is one."""
    cells = {
        (str(arm), int(age)): edge(runs)
        for (arm, age), runs in table.groupby(["arm", AGE], sort=False)
    }
    return {cell: each for cell, each in cells.items() if each is not None}


def multiple(one: Edge, other: Edge) -> tuple[str, float, tuple[float, float] | None] | None:
    """one ÷ other, paired by seed: the bound, as of an edge; the geometric mean; and its interval,
    None for a bound. None if nothing is known, as without a common seed."""
    seeds = sorted(set(one.edges) & set(other.edges))
    differences = [one.edges[seed] - other.edges[seed] for seed in seeds]
    above = not (one.above_grid | other.below_grid).isdisjoint(seeds)
    below = not (one.below_grid | other.above_grid).isdisjoint(seeds)
    if not seeds or (above and below):
        return None
    bound = _bound(above, below)
    ends = None if bound else interval_of_mean(differences)
    mean = 2.0 ** float(np.mean(differences))
    return bound, mean, (2.0 ** ends[0], 2.0 ** ends[1]) if ends else None


def _bound(above: bool, below: bool) -> str:
    if above and below:
        return "?"
    return "≥" if above else "≤" if below else ""


def pooled_factor(found: dict[tuple[str, int], Edge], age: int) -> float | None:
    """The half-width of a multiple's 95 % interval, as a factor, if all methods have the same
    variance: from what log2 of the edges at that age leaves after a mean for each method and one
    for each seed. Edges outside the grid are left out; None for fewer than two methods or seeds.
    """
    inside = [each.edges for (_, at), each in found.items() if at == age and each.inside]
    edges = pandas.DataFrame(inside).dropna(axis=1).to_numpy()  # [methods, seeds]
    methods, seeds = edges.shape
    if methods < 2 or seeds < 2:
        return None
    left = edges - edges.mean(0) - edges.mean(1, keepdims=True) + edges.mean()
    freedom = (methods - 1) * (seeds - 1)
    error = math.sqrt(float((left**2).sum()) / freedom * 2 / seeds)
    return 2.0 ** (float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error)


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


@dataclass(frozen=True, slots=True)
class Law:
    """log2(edge) = (a method's constant) + slope · log2(age). interval: of the slope over seeds."""

    slope: float
    interval: tuple[float, float] | None
    cells: int


def law(found: dict[tuple[str, int], Edge], arms: Sequence[str]) -> Law | None:
    """How the edges fall with age: least squares for each seed, a constant per method, over the
    cells with stale data whose edges lie within the grid; then the mean over seeds.

    None for fewer than two such ages.
    """
    inside = {
        cell: each
        for cell, each in found.items()
        if cell[0] in arms and cell[1] > ON_POLICY and each.inside
    }
    seeds = sorted(
        set.intersection(*(set(each.edges) for each in inside.values())) if inside else []
    )
    slopes = []
    for seed in seeds:
        points = pandas.DataFrame(
            [(arm, math.log2(age), each.edges[seed]) for (arm, age), each in inside.items()],
            columns=["arm", "age", "edge"],
        )
        centred = points[["age", "edge"]] - points.groupby("arm")[["age", "edge"]].transform("mean")
        spread = float((centred["age"] ** 2).sum())
        if spread == 0:
            return None
        slopes.append(float((centred["age"] * centred["edge"]).sum()) / spread)
    if not slopes:
        return None
    return Law(float(np.mean(slopes)), interval_of_mean(slopes), len(inside))


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
