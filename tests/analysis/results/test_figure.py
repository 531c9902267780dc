"""Partial and missing runs are named and kept out of the statistics; few seeds are called so."""

import dataclasses

import numpy as np
import pandas
import pytest
from fabricated import ABSENT, COLLAPSING, STABLE, figure, rows_of

from rec_experiments.analysis.results.figure import releases_text, remarks, summary
from rec_experiments.analysis.results.formatting import readable
from rec_experiments.analysis.results.statistics import interval_of_mean


def test_statistics_count_finished_runs():
    rows = summary(figure()).set_index(["arm", "column", "metric"])
    whole, lone, absent = (
        rows.loc[arm, "offline", "eval/accuracy"] for arm in (COLLAPSING, STABLE, ABSENT)
    )
    finals = [
        np.mean([r["eval/accuracy"] for r in rows_of(COLLAPSING, s)[20::10]]) for s in range(3)
    ]
    assert [whole["seeds"], lone["seeds"], absent["seeds"]] == [3, 1, 0]
    assert whole["final"] == pytest.approx(np.mean(finals))
    assert (whole["final_low"], whole["final_high"]) == pytest.approx(interval_of_mean(finals))
    unknown = [lone["final_low"], absent["final"], whole["paired"], lone["paired_low"]]
    assert np.isnan(np.array(unknown, float)).all()  # one seed; no run; of itself
    assert lone["paired"] == pytest.approx(lone["area"] - whole["area"], abs=0.011)


def test_a_figure_that_names_statistics_has_a_table_of_them():
    found = summary(dataclasses.replace(figure(), statistics=["median", "lowest"]))
    table = [" ".join(line.split()) for line in readable(found)]
    # level + 0.01 · seed, at steps 0, 10, …, 40; t of two degrees of freedom is 4.303
    cells = f"{COLLAPSING} offline eval/accuracy 3 0.31 [0.285, 0.335] 0.01 [-0.0148, 0.0348] -"
    assert table[0] == "arm column metric seeds Median Min paired"
    assert cells in table
    assert f"{ABSENT} offline eval/accuracy 0 - - -" in table


def test_remarks_name_few_seeds_and_what_is_not_whole():
    data = figure()
    assert remarks(data) == [
        "A quick look at 3 seeds; claims need 10.",
        f"Partial, drawn as far as they go: {STABLE}, offline, seed 1 (failed, step 17).",
        f"Missing: {STABLE}, offline, seed 2; {ABSENT}, sync_interval = 20, seed 0.",
    ]
    assert not any("quick" in each for each in remarks(dataclasses.replace(data, scale="paper")))


def test_releases():
    assert releases_text(pandas.Series([], dtype="Int64")) == ""
    mixed = pandas.Series([12, 3, 12, None], dtype="Int64")
    assert releases_text(mixed) == "Runs of release 3, 12, an earlier one."
