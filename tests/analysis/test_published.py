"""Published tables of stale data, and the page that holds them beside ours.

1. The tables are whole, and each counterpart is an arm of sweep=presets and one of the page's ages.
2. Ratios are paired by seed and averaged as logarithms; an order is compared only where the
   published one is clear and there are several seeds.
"""

import math

import pandas
import published
import pytest
import yaml

from rec_experiments.analysis.results import stability
from rec_experiments.config.plugins import CONF

TABLES = yaml.safe_load(published.TABLES.read_text())
RATE = published.RATES[0]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table["name"])
def test_table(table):
    sweeps = [
        yaml.safe_load((CONF / f"sweep/{name}.yaml").read_text())
        for name in ("stability", "presets")
    ]
    arms = {arm for sweep in sweeps for arm in sweep["arms"]}
    assert {"source", "read", "checked", "about", "unit"} <= table.keys()
    assert table["read"] in {"image", "text", "secondary source"}
    assert all(len(row) == len(table["columns"]) for row in table["rows"].values())
    assert table["measure"] in published.MEASURES
    for ratio in table["ratios"]:
        assert {ratio["of"], ratio["to"]} <= set(table["columns"])
        for counterpart in ratio["here"] or []:
            arm, age = counterpart.rsplit(" ", 1)
            assert arm in arms
            assert int(age) in {0, 4, 19, 49, 149}


def row(theirs: list[list[float]], found: dict) -> list[str]:
    ratio = {"of": "A 9", "to": "B 0", "here": ["A 149", "B 0"]}
    return published.ratio_row(ratio, ["A 9", "B 0"], dict(enumerate(theirs)), found)


def test_ratios_are_paired_by_seed():
    found = {("A", RATE, 149): {0: 0.2, 1: 0.3, 7: 9.0}, ("B", RATE, 0): {0: 0.4, 1: 0.5, 8: 9.0}}
    said = row([[1.0, 2.0], [1.5, 2.0]], found)
    assert said[0] == "A 9 ÷ B 0; here A 149 ÷ B 0"
    assert said[1] == "0.50 to 0.75"
    assert said[2].startswith("0.55 [")  # of 0.5 and 0.6
    assert said[3:] == ["not run", "not run", "at 1 of 1 rates"]


@pytest.mark.parametrize(
    ("theirs", "ours", "order"),
    [
        ([[1.0, 2.0]], 0.9, "at 1 of 1 rates"),
        ([[1.0, 2.0]], 1.1, "at 0 of 1 rates"),
        ([[2.0, 1.0]], 1.1, "at 1 of 1 rates"),
        ([[2.0, 1.0], [1.0, 2.0]], 1.1, "no published order"),
        ([[1.0, 1.01]], 1.1, "no published order"),
    ],
)
def test_order(theirs, ours, order):
    found = {("A", RATE, 149): {0: ours, 1: ours}, ("B", RATE, 0): {0: 1.0, 1: 1.0}}
    assert row(theirs, found)[-1] == order


def test_what_no_order_or_mean_can_be_said_of():
    one = {("A", RATE, 149): {0: 0.5}, ("B", RATE, 0): {0: 1.0}}
    assert row([[1.0, 2.0]], one)[-1] == "one seed"
    of_zero = {("A", RATE, 149): {0: 0.0, 1: 0.4}, ("B", RATE, 0): {0: 1.0, 1: 1.0}}
    assert row([[1.0, 2.0]], of_zero)[2] == "0.00 to 0.40"  # 0 has no logarithm
    assert row([[1.0, 2.0]], {})[2:] == ["not run"] * 4


@pytest.mark.parametrize("slope", [-1.0, -0.5])
def test_the_law_finds_the_slope(slope):
    rows = [
        (arm, age, seed, math.log2(edge * age**slope), 0)
        for arm, edge in (("GRPO", 8e-4), ("REINFORCE", 4e-4))
        for age in (4, 19, 49)
        for seed in range(3)
    ]
    edges = pandas.DataFrame(rows, columns=stability.EDGES)
    found = published.law(edges, ["GRPO", "REINFORCE"])
    assert (found.slope, found.cells) == (pytest.approx(slope), 6)
