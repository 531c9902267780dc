"""Partial and missing runs are named and kept out of the statistics; few seeds are called so."""

import dataclasses
import math

import numpy as np
import pandas
import pytest
from fabricated import ABSENT, COLLAPSING, STABLE, figure, rows_of

from rec_experiments.analysis.results.statistics import interval_of_mean
from rec_experiments.analysis.results.summary import (
    releases_text,
    remarks,
    summary,
    summary_text,
)


def test_statistics_count_finished_runs_and_name_the_others():
    data = figure()
    found = summary(data)
    rows = {(row["arm"], row["column"], row["metric"]): row for row in found["rows"]}
    whole, lone, absent = (
        rows[arm, "offline", "eval/accuracy"] for arm in (COLLAPSING, STABLE, ABSENT)
    )
    finals = [
        np.mean([r["eval/accuracy"] for r in rows_of(COLLAPSING, s)[20::10]]) for s in range(3)
    ]
    assert whole["seeds"] == 3
    assert whole["final"]["mean"] == pytest.approx(np.mean(finals))
    assert whole["final"]["interval"] == pytest.approx(interval_of_mean(finals))
    assert (lone["seeds"], lone["final"]["interval"]) == (1, None)
    assert absent["final"] is None
    assert whole["paired"] is None
    assert lone["paired"]["interval"] is None  # one seed is finished
    difference = lone["area"]["mean"] - whole["area"]["mean"]
    assert lone["paired"]["mean"] == pytest.approx(difference, abs=0.011)
    text = summary_text(found)
    assert f"from that of {COLLAPSING}, paired by seed" in text
    assert all(name in text for name in [*remarks(data), *data.arms])


def test_a_figure_that_names_statistics_has_a_table_of_its_evaluations():
    found = summary(dataclasses.replace(figure(), statistics=["median", "lowest"]))
    cells = {(row["arm"], row["column"]): row for row in found["evaluations"]}
    whole = cells[COLLAPSING, "offline"]  # level + 0.01 · seed, at steps 0, 10, …, 40
    half = 4.302653 * 0.01 / math.sqrt(3)  # t of two degrees of freedom
    for name, mean in (("median", 0.31), ("lowest", 0.01)):
        assert whole[name]["mean"] == pytest.approx(mean)
        assert whole[name]["interval"] == pytest.approx([mean - half, mean + half])
    table = [" ".join(line.split()) for line in summary_text(found).splitlines()]
    cells = f"{COLLAPSING} offline eval/accuracy 3 0.310 [0.285, 0.335] 0.010 [-0.015, 0.035]"
    assert cells in table
    assert f"{ABSENT} offline eval/accuracy 0 - -" in table


def test_remarks_name_few_seeds_and_what_is_not_whole():
    data = figure()
    assert remarks(data) == [
        "A quick look at 3 seeds; claims need 10.",
        f"Partial, drawn as far as they go: {STABLE}, offline, seed 1 (failed, step 17).",
        f"Missing: {STABLE}, offline, seed 2; {ABSENT}, sync_interval = 20, seed 0.",
    ]
    assert not any("quick" in each for each in remarks(dataclasses.replace(data, scale="paper")))


@pytest.mark.parametrize(
    ("releases", "text"),
    [
        ([], ""),
        ([12, 12], "Runs of release 12."),
        ([12, 3, None], "Runs of release 3, 12, an earlier one."),
    ],
)
def test_releases(releases, text):
    steps = pandas.DataFrame({"release": pandas.array(releases, dtype="Int64")})
    assert releases_text(steps) == text
