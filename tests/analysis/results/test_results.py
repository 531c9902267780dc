"""What these tests lock: results are what the run folders say.

1. Run folders are read as far as they are whole; one run in several folders counts once.
2. Each statistic of one run has its closed form, or a reason for having no value.
3. Which seeds are read: those of the figure, those that claims need, or those that are named.
4. Partial and missing runs are named, and kept out of the statistics; few seeds are called so.
"""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
from fabricated import (
    ABSENT,
    COLLAPSING,
    PANELS,
    STABLE,
    STEPS,
    figure_data,
    rows_of,
    write_run,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from rec_experiments.analysis.results import statistics, summary
from rec_experiments.analysis.results.aggregate import interval_of_mean
from rec_experiments.analysis.results.figure_data import (
    FigureData,
    best_of,
    claim_seeds,
    composed,
    figure_of,
    places,
    scales,
)
from rec_experiments.analysis.results.runs import (
    Row,
    points,
    read_or_leave_out,
    read_run,
    releases_text,
)
from rec_experiments.errors import UserError

# Reading -----------------------------------------------------------------------------------------


def test_a_torn_last_line_is_left_out_and_a_damaged_one_is_named(tmp_path):
    path = write_run(tmp_path / "run", rows_of(STABLE, 0, steps=3), "running")
    with open(path / "metrics.jsonl", "a") as file:
        file.write('{"step": 4, "train/rew')
    run = read_run(STABLE, "", 0, path)
    assert (run.state, run.last_step, run.name) == ("running", 3, f"{STABLE}, seed 0")
    with open(path / "metrics.jsonl", "a") as file:
        file.write('\n{"step": 5}\n')
    with pytest.raises(UserError, match=rf"run folder {path}: metrics\.jsonl cannot be read"):
        read_run(STABLE, "", 0, path)


def test_one_that_cannot_be_read_is_named_once_and_does_not_count(tmp_path, capsys):
    path = write_run(tmp_path / "run", rows_of(STABLE, 0), "done")
    (path / "status.json").write_text("")
    first, again = (read_or_leave_out(STABLE, "", 0, path) for _ in range(2))
    assert first == again
    assert (first.state, first.rows, first.done) == ("unreadable", [], False)
    said = capsys.readouterr().err
    assert said == f"left out: {first.note}\n"
    assert f"run folder {path}: status.json cannot be read" in said


def test_a_finished_run_that_has_lost_rows_does_not_count(tmp_path, capsys):
    """A copy that was cut off between two lines looks whole."""
    whole = write_run(tmp_path / "whole", rows_of(STABLE, 0, STEPS), "done")
    assert read_or_leave_out(STABLE, "", 0, whole, STEPS).done
    path = write_run(tmp_path / "run", rows_of(STABLE, 0, STEPS - 1), "done")
    run = read_or_leave_out(STABLE, "", 0, path, STEPS)
    assert (run.state, run.rows, run.done) == ("unreadable", [], False)
    said = capsys.readouterr().err
    assert f"{path}: metrics.jsonl cannot be read (it ends at step {STEPS - 1} of {STEPS})" in said
    unfinished = write_run(tmp_path / "other", rows_of(STABLE, 0, STEPS - 1), "running")
    assert read_or_leave_out(STABLE, "", 0, unfinished, STEPS).last_step == STEPS - 1


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda rows: rows[:7] + rows[8:], "it has step 8 in place of step 7"),
        (lambda rows: rows[:7] + rows[6:], "it has step 6 in place of step 7"),
        (lambda rows: [*rows[:-1][::-1], rows[-1]], "in place of step 0"),
        (lambda rows: [rows[0], *rows], "it has step 0 in place of step 1"),
        (lambda rows: [*rows[:-1], {"step": STEPS}], "it has no evaluation at the end"),
    ],
)
def test_a_finished_run_has_each_step_once_and_in_order(tmp_path, capsys, spoil, why):
    path = write_run(tmp_path / "run", spoil(rows_of(STABLE, 0, STEPS)), "done")
    assert not read_or_leave_out(STABLE, "", 0, path, STEPS).done
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("origins", "text"),
    [
        ([], ""),
        ([{"release": 12}], "Runs of release 12."),
        ([{"starts": [{"release": 11}, {"release": 12}]}], "Runs of releases 11 and 12."),
        ([{"release": 3}, {"release": 2}, {"release": 1}], "Runs of releases 1, 2 and 3."),
        ([{"release": 12}, {}], "Runs of release 12 and an earlier release."),
        ([{}], "Runs of an earlier release."),
    ],
)
def test_releases(origins, text, tmp_path):
    runs = [read_run(STABLE, "", 9, tmp_path / "missing")]
    for number, origin in enumerate(origins):
        path = write_run(tmp_path / str(number), rows_of(STABLE, 0))
        starts = [{"from_step": 0, **each} for each in origin.get("starts", [origin])]
        (path / "provenance.json").write_text(json.dumps({"starts": starts}))
        runs.append(read_run(STABLE, "", number, path))
    assert releases_text(runs) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, True, None])
def test_a_metric_that_is_no_number_somewhere_has_no_statistic(value):
    """The rest of the curve would be a selection."""
    found = [{"step": 0, "m": 0.5}, {"step": 1, "m": value}, {"step": 2}]
    with pytest.raises(statistics.NoValue, match=f"m is .* at step 1|m is {value} at step 1"):
        statistics.FINAL.of(found, "m")
    assert statistics.FINAL.of([found[0], found[2]], "m") == 0.5


def test_copies_with_other_numbers_are_told(tmp_path):
    def run_of(*seeds):
        found = [
            read_run(
                STABLE, "", 0, write_run(tmp_path / f"{at}{seeds}", rows_of(STABLE, seed), "done")
            )
            for at, seed in enumerate(seeds)
        ]
        return best_of(found)

    assert not run_of(0, 0).they_differ
    differing = run_of(0, 1)
    assert differing.they_differ
    assert summary.duplicates([differing])[1] == (
        f"With different numbers in another folder: {differing.name}, from {tmp_path.name}."
    )


def test_a_run_in_several_folders_counts_once(tmp_path):
    """Done before not done, then the furthest; and the notes say so."""
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder, steps, state in zip(
        folders, (STEPS, STEPS - 1, STEPS), ("failed", "done", "running"), strict=True
    ):
        write_run(folder / "both", rows_of(STABLE, 0, steps), state)
    write_run(folders[0] / "once", rows_of(STABLE, 1))

    def read(name, folders):
        return best_of([read_run(STABLE, "offline", 0, p) for p in places(Path(name), folders)])

    run = read("both", folders)
    assert (run.path, run.state) == (folders[1] / "both", "done")
    assert run.copies == (folders[0] / "both", folders[2] / "both")
    assert read("both", [folders[2], folders[0]]).path == folders[2] / "both"  # the first of equals
    assert read("once", folders).copies == ()
    assert read("both", [folders[1], tmp_path / "a/../b"]).copies == ()  # the same folder twice
    assert read("none", folders).state == "missing"
    data = FigureData(
        name="figx", title="", caption="", scale="mini", claim_seeds=None, shown=[0],
        arms=[STABLE], columns=["offline"], panels=PANELS, runs=[run, read("once", folders)],
    )  # fmt: skip
    assert summary.remarks(data) == [
        f"In several folders, counted once: {run.name}, from {folders[1].name}."
    ]


@given(st.lists(st.one_of(st.just(...), st.none(), st.booleans(), st.integers(), st.floats())))
@settings(deadline=None)
def test_points_are_the_finite_numbers_and_a_measurement_has_no_other(values):
    """... stands for a row without the metric."""
    rows = [{"step": n} if each is ... else {"step": n, "m": each} for n, each in enumerate(values)]
    numbers = [
        (n, value)
        for n, value in enumerate(values)
        if type(value) in (int, float) and abs(value) < math.inf
    ]
    assert points(rows, "m") == ([n for n, _ in numbers], [value for _, value in numbers])
    if numbers and len(numbers) == len([each for each in values if each is not ...]):
        assert statistics.measured(rows, "m") == points(rows, "m")
    else:
        with pytest.raises(statistics.NoValue):
            statistics.measured(rows, "m")


# One run -----------------------------------------------------------------------------------------


def rows(*values: float) -> list[Row]:
    return [{"step": step, "m": value} for step, value in enumerate(values)]


@pytest.mark.parametrize(
    ("statistic", "values", "expected"),
    [
        (statistics.FINAL, (9, 9, 1, 2, 3), 2),
        (statistics.BEST, (1, 5, 3), 3),
        (statistics.BEST, (0, 1, 5, 3, 4, 0), 4),
        (statistics.AREA_UNDER_CURVE, (0, 1, 2), 1),
        (statistics.FINAL_MINUS_INITIAL, (1, 9, 3, 3, 3), 2),
        (statistics.FINAL_MINUS_BEST, (1, 8, 9, 7, 2, 2, 2), -6),
        (statistics.SECOND_HALF, (9, 9, 1, 2, 3), 2),
        (statistics.SECOND_HALF_MINUS_INITIAL, (4, 0, 1, 2, 3), -2),
        (statistics.MAXIMUM_DRAWDOWN, (1, 5, 2, 6, 4), 3),
        (statistics.FINAL_MINUS_MIDDLE_THIRD, (0, 0, 1, 2, 3, 5, 5), 13 / 3 - 2),
        (summary.STATISTICS["lowest"], (3, 1, 6, 2), 1),
        (summary.STATISTICS["highest"], (3, 1, 6, 2), 6),
        (summary.STATISTICS["median"], (3, 1, 6, 2), 2.5),
        (summary.STATISTICS["mean"], (3, 1, 6, 2), 3),
    ],
)
def test_closed_forms(statistic, values, expected):
    assert statistic.of(rows(*values), "m") == pytest.approx(expected)
    for lacking in (rows(), [{"step": step} for step in range(3)]):
        with pytest.raises(statistics.NoValue, match="m was not measured"):
            statistic.of(lacking, "m")


def test_a_straight_line_and_steps_that_are_apart():
    line = [{"step": s, "m": s / 40} for s in (0, 10, 20, 30, 40)]
    found = {name: measure(line, "m") for name, measure in summary.SUMMARIES.items()}
    assert found == pytest.approx({"final": 0.75, "area": 0.5, "best": 0.75, "last": 1.0})
    uneven = [{"step": 0, "m": 0.0}, {"step": 30, "m": 0.0}, {"step": 40, "m": 1.0}]
    assert statistics.area_under_curve(uneven, "m") == pytest.approx(5 / 40)


# Which runs --------------------------------------------------------------------------------------


def seeds_of(overrides: tuple[str, ...], for_claims: bool) -> set[int]:
    lines = figure_of("fig6", [*overrides], for_claims)[1]
    return {job.config["seed"] for job in composed("fig6", tuple(lines))[1]}


def test_claims_are_judged_on_the_seeds_that_their_scale_fixes():
    """Seeds 0 to 9 were seen before; the figure's own are read with them."""
    assert claim_seeds("mini") == list(range(10, 20))
    assert seeds_of(("scale=mini",), for_claims=False) == {0, 1, 2}
    assert seeds_of(("scale=mini",), for_claims=True) == {0, 1, 2, *range(10, 20)}
    assert seeds_of(("scale=mini", "seed=4,5"), for_claims=True) == {4, 5}


def test_a_scale_that_fixes_none_takes_the_seeds_of_its_figures():
    assert {"mini", "paper"} <= set(scales())
    assert claim_seeds("paper") is None
    assert seeds_of(("scale=paper",), for_claims=True) == {42}


# Several runs ------------------------------------------------------------------------------------


def test_statistics_count_finished_runs_and_name_the_others(tmp_path):
    data = figure_data(tmp_path)
    found = summary.summary(data)
    rows = {(row["arm"], row["column"], row["metric"]): row for row in found["rows"]}
    whole = rows[COLLAPSING, "offline", "eval/accuracy"]
    finals = [np.mean([r["eval/accuracy"] for r in rows_of(COLLAPSING, s)[20::10]]) for s in (0, 1)]
    assert whole["seeds"] == 3
    assert whole["final"]["mean"] == pytest.approx(np.mean([*finals, 2 * finals[1] - finals[0]]))
    three = [finals[0], finals[1], 2 * finals[1] - finals[0]]
    assert whole["final"]["interval"] == pytest.approx(interval_of_mean(three))
    lone = rows[STABLE, "offline", "eval/accuracy"]
    assert (lone["seeds"], lone["final"]["interval"]) == (1, None)
    assert rows[ABSENT, "offline", "eval/accuracy"]["final"] is None
    assert found["partial"] == [f"{STABLE}, offline, seed 1 (failed, step 17)"]
    assert found["missing"] == [
        f"{STABLE}, offline, seed 2",
        f"{ABSENT}, sync_interval = 20, seed 0",
    ]
    first = data.arms[0]
    assert rows[first, "offline", "eval/accuracy"]["paired"] is None
    paired = rows[STABLE, "offline", "eval/accuracy"]["paired"]
    areas = [rows[arm, "offline", "eval/accuracy"]["area"]["mean"] for arm in (STABLE, first)]
    assert paired["interval"] is None  # one seed is finished
    assert paired["mean"] == pytest.approx(areas[0] - areas[1], abs=0.011)
    text = summary.summary_text(found)
    assert f"from that of {first}, paired by seed" in text
    assert all(name in text for name in [*found["partial"], *found["missing"], *data.arms])
    assert "95 % t interval over seeds" in text


def test_a_figure_that_names_statistics_has_a_table_of_its_evaluations(tmp_path):
    data = figure_data(tmp_path)
    plain = summary.summary(data)
    assert not plain.keys() & {"statistics", "evaluations"}
    found = summary.summary(dataclasses.replace(data, statistics=["median", "lowest"]))
    assert {key: found[key] for key in plain} == plain
    cells = {(row["arm"], row["column"]): row for row in found["evaluations"]}
    assert list(cells) == [(arm, column) for arm in data.arms for column in data.columns]
    whole = cells[COLLAPSING, "offline"]  # level + 0.01 · seed, at steps 0, 10, …, 40
    assert (whole["seeds"], list(whole)[3:]) == (3, ["median", "lowest"])
    half = 4.302653 * 0.01 / math.sqrt(3)  # t of two degrees of freedom
    for name, mean in (("median", 0.31), ("lowest", 0.01)):
        assert whole[name]["mean"] == pytest.approx(mean)
        assert whole[name]["interval"] == pytest.approx([mean - half, mean + half])
    assert cells[STABLE, "offline"]["lowest"] == {"mean": pytest.approx(0.3), "interval": None}
    assert cells[ABSENT, "offline"]["lowest"] is None

    text, table = summary.summary_text(plain), summary.summary_text(found).splitlines()
    assert table[: text.count("\n")] == text.splitlines()
    head, *body = [line.split("  ") for line in table[text.count("\n") + 1 :]]
    assert [cell.strip() for cell in head if cell] == ["arm", "column", "seeds", "Median", "Min"]
    printed = [[cell.strip() for cell in line if cell] for line in body]
    assert [COLLAPSING, "offline", "3", "0.3100 ± 0.0248", "0.0100 ± 0.0248"] in printed
    assert [STABLE, "offline", "1", "0.5500", "0.3000"] in printed
    assert [ABSENT, "offline", "0", "-", "-"] in printed
    assert any(line.startswith("Min    lowest evaluation of a run") for line in table)


def test_fewer_seeds_than_claims_need_are_a_quick_look(tmp_path):
    data = figure_data(tmp_path)
    assert summary.remarks(data)[0] == "A quick look at 3 seeds; claims need 10."
    assert summary.remarks(dataclasses.replace(data, shown=[1]).as_shown())[0] == (
        "A quick look at 1 seed; claims need 10."
    )
    for enough in ([0, 1, 2], None):
        found = summary.remarks(dataclasses.replace(data, claim_seeds=enough))
        assert not any("quick look" in line for line in found)
