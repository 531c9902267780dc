"""Published orderings as forecasts of our runs, by the rule that orderings.yaml states."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pandas
import yaml
from archived_runs import runs
from published import TABLES

from rec_experiments.analysis.results.stability import RATE

RATES, SEEDS = (3.0e-5, 1.2e-4, 4.8e-4), (0, 1, 2)  # of the runs that orderings.yaml speaks of
ARCHIVES = ("stability", "presets", "four_parts")  # of two copies of a run the first counts
AGE, METHODS, BOTH = "one method, two ages", "two methods at one age", "both differ"


class Scored(NamedTuple):
    """A forecast: its probability, whether it happened (None while open), and its weight."""

    p: float
    happened: bool | None
    weight: float = 1.0


def orderings(
    entries: Sequence[dict[str, Any]],
) -> tuple[list[list[str]], dict[str, list[Scored]]]:
    """A row of the page for each pair of columns with a miss, an ordering whose likelier side did
    not come true or which has no runs; and the scored orderings by their kind.

    Each row of a published table in which two columns differ is an ordering. Those of one pair
    share a probability, and together have the weight 1.
    """
    published = {table["name"]: table for table in yaml.safe_load(TABLES.read_text())}
    lines: list[list[str]] = []
    found: dict[str, list[Scored]] = {AGE: [], METHODS: [], BOTH: []}
    for entry in entries:
        table = published[entry["table"]]
        for pair in entry["pairs"]:
            of, to = table["columns"].index(pair["of"]), table["columns"].index(pair["to"])
            values = [(row[of], row[to]) for row in table["rows"].values()]
            above = [a > b for a, b in values if None not in (a, b) and a != b]
            p = probability(*pair["here"])
            known = p is not None
            found[kind(*pair["here"])] += [
                Scored(p if known else 0.5, x if known else None, 1 / len(above)) for x in above
            ]
            if not known or any((p > 0.5) != x for x in above):
                lines.append([
                    f"{entry['table']}: {pair['of']} > {pair['to']}",
                    f"{sum(above)} of {len(above)}",
                    " > ".join(pair["here"]),
                    f"{p:.2f}" if known else "not run",
                ])  # fmt: skip
    return lines, found


def kind(one: str, other: str) -> str:
    (method, age), (against, other_age) = one.rsplit(" ", 1), other.rsplit(" ", 1)
    return AGE if method == against else METHODS if age == other_age else BOTH


def probability(one: str, other: str) -> float | None:
    """That the first of two `METHOD AGE` ends above the second, by the rule of orderings.yaml; None
    if there is no pair of runs."""
    archives = pandas.concat(table for name in ARCHIVES if len(table := runs(name)))
    chosen = archives[
        (archives["task"] == "reduction")
        & archives[RATE].isin(RATES)
        & archives["seed"].isin(SEEDS)
    ].drop_duplicates(["arm", "sync", "age", RATE, "seed"])
    names = chosen["arm"] + " " + chosen["age"].map(str)
    pairs = chosen[names == one].merge(chosen[names == other], on=["seed", RATE])
    gaps = pairs["final_x"] - pairs["final_y"]
    wins = (gaps > 0).sum() + (gaps == 0).sum() / 2
    return float((1 + wins) / (2 + len(gaps))) if len(gaps) else None
