"""Writes docs/published.md, published tables of stale data beside our own runs: `make pages`
or `python docs/published.py`.

Levels cannot be compared between a language model and the miniature, so the page has orderings and
ratios, and how the collapse rate depends on age.
"""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas
import yaml

import rec_experiments
from rec_experiments import sweeps
from rec_experiments.analysis.results import stability
from rec_experiments.analysis.results.figure import FigureRuns, figure_runs
from rec_experiments.analysis.results.formatting import markdown_table
from rec_experiments.analysis.results.statistics import (
    Statistic,
    curve,
    final,
    interval_of_mean,
    mean,
)
from rec_experiments.analysis.results.table import find
from rec_experiments.config.settings import oldest_age, settings

HERE = Path(__file__).parent
TABLES = Path(rec_experiments.__file__).parent / "analysis" / "published" / "staleness.yaml"
RATES = (
    3.0e-5,
    1.2e-4,
    4.8e-4,
)  # of the learning rates of sweep=presets, those at which GRPO learns fresh
LOWER_RATES = (3.75e-6, 7.5e-6)  # below the grid of sweep=stability, for REINFORCE on old data
AGES = ("on_policy", "interval5", "interval20", "interval50", "offline")
SEEDS = "seed=0,1,2"
EQUAL = 0.02  # ratios that are closer to 1 have no order
NOT_RUN = "not run"
MEASURES: dict[str, tuple[str, Statistic]] = {
    "accuracy": ("eval/accuracy", final),
    "clipped share": ("train/clip_fraction", mean),
}
Values = dict[tuple[str, float, int], dict[int, float]]  # method, rate and age: value by seed


def page() -> str:
    """The whole page. Of two copies of one release, that of the stability map counts."""
    tables = yaml.safe_load(TABLES.read_text())
    archives = sorted((HERE / "results").glob("*.csv.xz"))
    found_runs = find(sorted(archives, key=lambda path: "stability" not in path.name))
    pairs = [each["here"] or [] for of in tables for each in of["ratios"]]
    methods = sorted({f"'{each.rsplit(' ', 1)[0]}'" for pair in pairs for each in pair})
    data = figure_runs(
        "presets",
        found_runs,
        [
            f"hydra.sweeper.only=[{','.join(methods)}]",
            f"sync={','.join(AGES)}",
            f"optimizer.learning_rate={','.join(map(str, RATES))}",
            SEEDS,
        ],
    )
    found = {name: values(data, *of) for name, of in MEASURES.items()}
    sections = [
        line
        for each in tables
        if any(ratio["here"] for ratio in each["ratios"])
        for line in section(each, found[each["measure"]])
    ]
    grid = sweeps.load_figure("stability", []).grid[stability.RATE]
    rates = ",".join(map(str, [*LOWER_RATES, *grid]))
    law = exponents(figure_runs("stability", found_runs, [SEEDS, f"{stability.RATE}={rates}"]))
    return (
        (HERE / "published.template")
        .read_text()
        .format(
            tables="\n".join(sections), law="\n".join(law), rates=", ".join(map(written, RATES))
        )
    )


def values(data: FigureRuns, metric: str, measure: Statistic) -> Values:
    """A statistic of the finished runs."""
    found: Values = {}
    done = data.runs[data.runs["state"] == "done"]
    rows = dict(iter(data.steps.groupby("run")))
    for arm, seed, run, overrides in done[["arm", "seed", "run", "overrides"]].itertuples(
        index=False
    ):
        here = settings(overrides)
        cell = (arm, here["optimizer.learning_rate"], oldest_age(here))
        found.setdefault(cell, {})[seed] = measure(curve(rows[run], metric))
    return found


def section(published: dict[str, Any], found: Values) -> list[str]:
    """Where a table was published, and its ratios beside ours."""
    head, rows = published["columns"], published["rows"]
    checked = f"checked {published['checked']}" if published["checked"] else "not checked"
    ratios = [ratio_row(each, head, rows, found) for each in published["ratios"]]
    columns = [
        "ratio",
        "published",
        *(f"here, {written(rate)}" for rate in RATES),
        "same order here",
    ]
    return [
        f"## {published['name']}", "",
        f"{published['source']} ({published['read']}, {checked}): {published['about']}. "
        f"Numbers after a method: {published['unit']}.", "",
        *markdown_table(columns, ratios), "",
    ]  # fmt: skip


def ratio_row(
    ratio: dict[str, Any], head: list[str], rows: dict[str, list[Any]], found: Values
) -> list[str]:
    of, to = head.index(ratio["of"]), head.index(ratio["to"])
    theirs = [row[of] / row[to] for row in rows.values() if None not in (row[of], row[to])]
    said = f"{min(theirs):.2f} to {max(theirs):.2f}" if len(theirs) > 1 else f"{theirs[0]:.2f}"
    here = [ours(ratio["here"], rate, found) for rate in RATES]
    return [
        f"{ratio['of']} ÷ {ratio['to']}; here {' ÷ '.join(ratio['here'])}",
        said,
        *(with_interval(each) if each else NOT_RUN for each in here),
        same_order(theirs, here),
    ]


def ours(pair: list[str], rate: float, found: Values) -> list[float]:
    """The ratio of each seed that has both runs."""
    (of, age), (to, other) = (each.rsplit(" ", 1) for each in pair)
    tops, bottoms = found.get((of, rate, int(age)), {}), found.get((to, rate, int(other)), {})
    return [
        tops[seed] / bottoms[seed] for seed in sorted(tops.keys() & bottoms.keys()) if bottoms[seed]
    ]


def with_interval(ratios: list[float]) -> str:
    """The geometric mean, and its t interval, which is one of logarithms; the range of the seeds if
    a ratio is 0."""
    if not all(ratios):
        return f"{min(ratios):.2f} to {max(ratios):.2f}"
    logs = np.log(ratios)
    ends = interval_of_mean([*logs])
    return f"{np.exp(logs.mean()):.2f}{bracketed(ends and (np.exp(ends[0]), np.exp(ends[1])))}"


def bracketed(ends: tuple[float, float] | None) -> str:
    return f" [{ends[0]:.2f}, {ends[1]:.2f}]" if ends else ""


def same_order(theirs: list[float], here: list[list[float]]) -> str:
    """At how many rates with several seeds our mean ratio differs from 1 to the same side as all
    published ones. here: the ratios of each rate."""
    means = [np.mean(each) for each in here if len(each) > 1]
    if not means:
        return "one seed" if any(here) else NOT_RUN
    if not (max(theirs) < 1 - EQUAL or min(theirs) > 1 + EQUAL):
        return "no published order"
    below = theirs[0] < 1
    same = sum(each < 1 - EQUAL if below else each > 1 + EQUAL for each in means)
    return f"at {same} of {len(means)} rates"


def exponents(data: FigureRuns) -> list[str]:
    """How the collapse rate of each method falls with age, over stale data within the grid."""
    runs = stability.with_on_policy(
        stability.gains(data, [stability.RATE, stability.AGE]), data.map["on_policy"]
    )
    edges = stability.edges(runs)
    arms = [arm for arm in data.arms if arm in set(runs["arm"])]
    laws = {arm: law(edges, [arm]) for arm in arms} | {"all": law(edges, arms)}
    rows = [
        [arm, f"{of_arm.slope:+.2f}{bracketed(of_arm.interval)}", str(of_arm.cells)]
        for arm, of_arm in laws.items()
        if of_arm
    ]
    return markdown_table(["method", "exponent of age", "ages"], rows)


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
    stale = stability.within_grid(
        edges[edges["arm"].isin([*arms]) & (edges[stability.AGE] > stability.ON_POLICY)]
    )
    cells = len(stale[["arm", stability.AGE]].drop_duplicates())
    slopes = []
    for _, of_seed in stale.groupby("seed"):
        if len(of_seed) == cells:
            points = of_seed.assign(age=[math.log2(age) for age in of_seed[stability.AGE]])
            by_arm = points.groupby("arm")[["age", "log2"]]
            centred = points[["age", "log2"]] - by_arm.transform("mean")
            spread = float((centred["age"] ** 2).sum())
            if spread == 0:
                return None
            slopes.append(float((centred["age"] * centred["log2"]).sum()) / spread)
    return Law(float(np.mean(slopes)), interval_of_mean(slopes), cells) if slopes else None


def written(rate: float) -> str:
    """As in 1.2e-4."""
    return f"{rate:.1e}".replace("e-0", "e-").replace(".0e", "e")


def short(value: float) -> str:
    """As in .15 and −.05."""
    rounded = round(value, 2) + 0.0  # without a negative zero
    return f"{rounded:.2f}".replace("0.", ".", 1 if abs(rounded) < 1 else 0).replace("-", "−")


if __name__ == "__main__":
    (HERE / "published.md").write_text(page())
