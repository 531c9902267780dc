"""The regime's tables say what the rows of the runs say.

1. Numbers against closed forms; lags and windows against the schedule that made them.
2. A published value is set beside the arms it is for, and only at lags that they come back to.
3. A run of this code has a number in every table; one without the newer metrics leaves them out.
"""

import dataclasses
import math

import conftest
import fabricated
import numpy as np
import pandas
import pytest
from conftest import SMALL, resolve
from hypothesis import given, settings
from hypothesis import strategies as st

from rec_experiments.analysis import regime
from rec_experiments.analysis.regime import Published
from rec_experiments.analysis.results.table import runs
from rec_experiments.cli.main import run_command
from rec_experiments.rollout.schedule import Schedule


def rows_of(schedule: Schedule, steps: int, **metrics) -> list[dict]:
    """Rows of a run on this schedule; metrics: functions of lag and step."""
    rows: list[dict] = [{"step": 0, "eval/accuracy": 0.25}]
    for batch in range(steps):
        stale = batch - schedule.version(batch)
        row = {"step": batch + 1, "train/staleness": float(stale)}
        row["train/policy_version"] = schedule.version(batch)
        row |= {f"train/{name}": of(stale, batch + 1) for name, of in metrics.items()}
        rows.append(row)
    rows[-1]["eval/accuracy"] = 0.5
    return rows


def schedule(interval: int | None, offset: int = 0) -> Schedule:
    return Schedule(interval=interval, offset=offset, phase="paper")


def steps_of(rows: list[dict], run: str = "run") -> pandas.DataFrame:
    return regime.measured(pandas.DataFrame(rows).assign(arm="arm", run=run, column="column"))


EVERY_20 = schedule(20)


# Numbers ------------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.integers(0, 12), st.integers(1, 90))
@settings(deadline=None, max_examples=30)
def test_a_mean_at_a_lag_is_that_of_the_rows_that_the_schedule_gives_it(interval, offset, steps):
    made = schedule(interval, offset)
    table = steps_of(rows_of(made, steps, ess=lambda lag, step: lag + 100 * step))
    lags = [batch - made.version(batch) for batch in range(steps)]
    for lag in {*lags}:
        at = [lag + 100 * (batch + 1) for batch in range(steps) if lags[batch] == lag]
        assert regime.means(table, "ess", (lag, lag))["arm"] == pytest.approx(np.mean(at))
    assert regime.means(table, "ess", (99, None)).empty
    assert regime.means(table, "ess", (0, None))["arm"] == regime.means(table, "ess")["arm"]


@pytest.mark.parametrize(("part", "first"), [(None, 0), ("start", 0), ("middle", 9), ("end", 18)])
def test_an_arms_mean_is_that_of_its_runs(part, first):
    """Whatever the lengths of the runs; values that are not finite are left out."""
    values = [1.0 * n**2 for n in range(20)]
    rows = [{"step": n, "train/kl": value} for n, value in enumerate([math.inf, *values])]
    short = [{"step": 0, "train/kl": 100.0}, {"step": 1}]
    both = pandas.concat([steps_of(rows), steps_of(short, "short")], ignore_index=True)
    whole = values if part is None else values[first : first + 2]
    assert regime.means(both, "kl", part=part)["arm"] == pytest.approx((np.mean(whole) + 100) / 2)


def test_a_batch_of_several_lags_has_none():
    rows = [
        {"train/staleness": 2.0},
        {"train/staleness": 2.0, "train/staleness_min": 2, "train/staleness_max": 2},
        {"train/staleness": 2.0, "train/staleness_min": 1, "train/staleness_max": 3},
        {"train/staleness": math.inf},
        {},
    ]
    found = steps_of([{"step": 0, **row} for row in rows])
    assert found["lag"].fillna(-1).tolist() == [2, 2, -1, -1, -1]


@given(st.sets(st.integers(0, 200), min_size=1))
@settings(max_examples=30)
def test_lags_shown_are_some_of_those_that_occur_from_first_to_last(lags):
    shown = regime.spread(lags)
    assert set(shown) <= lags
    assert shown == sorted(set(shown))
    assert {min(lags), max(lags)} <= set(shown)
    assert len(shown) <= regime.MOST_LAGS
    assert regime.spread(set(range(20))) == [0, 1, 4, 9, 14, 19]


# Published values ---------------------------------------------------------------------------------


def published(**changes) -> Published:
    """A range of the clipped share at lag 1 to 3."""
    first = {f.name: None for f in dataclasses.fields(Published)}
    about = {"name": "y", "source": "s", "setting": "t", "read": "text", "arms": {}}
    given = {"quantity": "clip_fraction", "lags": (1, 3), "low": 10, "high": 20}
    return Published(**{**first, **about, **given, **changes})


def test_a_lag_counts_if_a_run_comes_back_to_it():
    """The first steps of an offline or offset run are the only ones at their lags."""

    def value(made: Schedule, **changes) -> list[float]:
        rows = rows_of(made, 60, clip_fraction=lambda lag, step: lag / 1000)
        return [*regime.value_here(steps_of(rows), published(**changes))]

    assert value(EVERY_20) == pytest.approx([0.2])
    assert len(value(EVERY_20, lags=(2, None))) == 1
    assert value(EVERY_20, lags=(1, 20)) == []
    for made in (schedule(None), schedule(1, 10), schedule(1)):
        assert value(made) == []
    assert value(schedule(1, 10), lags=(10, 10)) == pytest.approx([1])


@pytest.mark.parametrize(
    ("entry", "where", "span"),
    [
        ({}, "clipped share of tokens, % at lag 1 to 3", "10 to 20"),
        ({"lags": (256, None), "high": None}, "clipped share of tokens, % at lag 256 and more",
         "at least 10"),
        ({"lags": None, "part": "end", "quantity": "entropy", "low": 20}, "entropy at the end",
         "20"),
        ({"lags": None, "quantity": "ess", "low": None}, "effective sample size", "at most 20"),
    ],
)  # fmt: skip
def test_what_is_published_in_words(entry, where, span):
    assert (published(**entry).where, published(**entry).span) == (where, span)


@pytest.mark.parametrize(
    ("value", "written"),
    [(0.0, "0"), (7.5, "7.5"), (0.0123, "0.012"), (96.2345, "96.2"), (1234.5, "1234"),
     (-2.345, "-2.35"), (1e304, "1e+304"), (math.nan, "-")],
)  # fmt: skip
def test_numbers_have_the_digits_that_count(value, written):
    assert regime.number(value) == written


# Tables -------------------------------------------------------------------------------------------


def test_every_table_of_a_run_of_this_code_has_numbers(tmp_path):
    overrides = ("steps=8", "sync.interval=2", "algo=grpo", "kl_every=1", "eval_every=1")
    folder = conftest.run(tmp_path / "run", *SMALL, *overrides)
    [(column, found)] = regime.tables(runs([folder.path])).items()
    assert column == "interval 2"
    shown = {regime.named(each) for each in (*regime.BY_LAG, *regime.BY_PART)}
    assert shown <= found.keys()
    assert all((table != "-").to_numpy().all() for table in found.values())
    rows = folder.metrics()[1:]
    at = [row["train/ess"] for row in rows if row["train/staleness"] == 1]
    assert found["effective sample size"]["lag 1"].item() == regime.number(sum(at) / 4)
    assert found["runs"]["seeds"].item() == "1"


@pytest.fixture
def compared(tmp_path):
    """Two arms, lag / 1000 of whose tokens are clipped."""
    rows = rows_of(EVERY_20, 60, clip_fraction=lambda lag, step: lag / 1000, kl=lambda lag, _: 0.5)
    return [
        fabricated.write_run(
            tmp_path / name, rows, config=resolve(*words), command=["rec_experiments", *words]
        )
        for name, words in (
            ("grpo", ["algo=grpo", "sync=interval20"]),
            ("wide", ["algo=rec_oneside_nois", "clip.low=0.6", "clip.high=2.0", "sync=interval20"]),
        )
    ]


def test_published_values_stand_beside_the_arms_they_are_for(compared):
    [found] = regime.tables(runs(compared)).values()
    beside = found["published values, and these arms beside them"]
    found = beside.loc["verl, PPO 0.5B", ["arm", "here", "place"]]
    assert found.tolist() == ["GRPO", "0.15", "inside"]
    arm, here, place = beside.loc["paper, NoIS (0.6, 2.0)", ["arm", "here", "place"]]
    assert arm.startswith("REC-OneSide-NoIS")
    assert (here, place) == ("1", "above")
    assert beside.loc["paper, GRPO", "arm"] == "GRPO"
    assert not {"paper, REINFORCE", "M2PO's GRPO at lag 256"} & {*beside.index}


def test_the_command_prints(compared, capsys):
    """Metrics that a run has not measured have no table."""
    run_command("regime", *map(str, compared))
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("interval 20 runs seeds steps GRPO 1 60")
    assert "GRPO 0.95 0 0.1 0.4 0.9 1.4 1.9" in printed
    assert "entropy" not in printed
    assert "checked 22 November 2026" in printed
