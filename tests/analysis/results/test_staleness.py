"""Staleness: what is read off a sweep over ages.

1. A method survives up to the largest age with no failure before it, by its interval over all
   seeds; what was not run, or not with all seeds, decides nothing.
2. The area is a mean on a logarithmic axis; on-policy opens both forms, offline closes one.
3. The picture has the points, intervals and names of its data.
4. Columns that are no ages stand in their order, and each method's best is named.
"""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

from rec_experiments.analysis.figures import staleness as picture
from rec_experiments.analysis.results import staleness
from rec_experiments.analysis.results.figure_data import FigureData
from rec_experiments.analysis.results.runs import Run

COLUMNS = {
    "sync_offset = 20": (1, 20),
    "on-policy": (1, 0),
    "sync_offset = 5": (1, 5),
    "sync_interval = 20": (20, 0),
    "sync_interval = 5": (5, 0),
    "offline": (None, 0),
}
START = 0.4
# Final accuracy by column; REINFORCE falls below the start at 5 and comes back at 20.
ENDS = {
    "GRPO": dict.fromkeys(COLUMNS, 0.6) | {"offline": 0.3, "sync_offset = 20": 0.7},
    "REINFORCE": dict.fromkeys(COLUMNS, 0.6) | {"sync_offset = 5": 0.2, "sync_interval = 5": 0.2},
}
SPREAD = (-0.01, 0.0, 0.01)  # of the seeds about it


def run_of(arm: str, column: str, seed: int, end: float) -> Run:
    rows = [{"step": 0, "eval/accuracy": START}]
    rows += [{"step": step, "eval/accuracy": end, "time/train": 0.5} for step in (1, 2, 3)]
    return Run(arm=arm, column=column, seed=seed, path=Path(), state="done", rows=rows)


def figure(spread=SPREAD, without=()) -> FigureData:
    """without: (arm, column) or (arm, column, seed) of the runs that are not there."""
    runs = [
        run_of(arm, column, seed, ENDS[arm][column] + off)
        for arm, column, (seed, off) in itertools.product(ENDS, COLUMNS, enumerate(spread))
        if not {(arm, column), (arm, column, seed)} & set(without)
    ]
    return FigureData(
        name="staleness", title="Staleness", caption="Made up.", scale="mini",
        claim_seeds=list(range(10)), shown=[0, 1, 2], arms=list(ENDS), columns=list(COLUMNS),
        panels=[], runs=runs,
        picture="staleness", schedules=COLUMNS,
    )  # fmt: skip


def by_arm(data: FigureData, form: str) -> dict[str, staleness.Line]:
    return {line.arm: line for line in staleness.lines(data, form)}


def test_ages_are_sorted_and_on_policy_opens_both_forms():
    data = figure()
    assert [age for age, _ in staleness.ages(data, "offset")] == [0, 5, 20]
    assert [age for age, _ in staleness.ages(data, "interval")] == [1, 5, 20, staleness.OFFLINE]


def survived(data: FigureData, arm: str, form: str) -> tuple:
    """What the summary says, and how the table writes it."""
    found = staleness.summary(data)
    line = found["methods"][arm][form]
    head, *rows = staleness.table(found, form)
    [row] = [row for row in rows if row[0] == arm]
    return line["survives"], line["beyond"], row[head.index("survives")]


def test_a_method_survives_up_to_its_first_failure():
    assert survived(figure(), "GRPO", "offset") == (20, "none", "20")
    assert survived(figure(), "GRPO", "interval") == (20, "failed", "20")  # not offline
    assert survived(figure(), "REINFORCE", "offset") == (0, "failed", "0")
    assert survived(figure(), "REINFORCE", "interval") == (1, "failed", "1")


def test_the_interval_over_seeds_decides_and_one_seed_does_not():
    wide = figure(spread=(-0.3, 0.0, 0.3))
    points = by_arm(wide, "offset")["GRPO"].points
    assert [point.mean for point in points] == pytest.approx([0.6, 0.6, 0.7])
    assert survived(wide, "GRPO", "offset") == (None, "failed", "none")  # gain 0.2, with 0 inside
    assert survived(figure(spread=(0.0,)), "GRPO", "offset") == (None, "unknown", "–")


ON_POLICY, FIVE, TWENTY = "on-policy", "sync_offset = 5", "sync_offset = 20"


@pytest.mark.parametrize(
    ("without", "expected"),
    [
        ([("GRPO", TWENTY)], (5, "unknown", "≥ 5")),
        ([("GRPO", TWENTY, 1)], (5, "unknown", "≥ 5")),
        ([("GRPO", TWENTY, 1), ("GRPO", TWENTY, 2)], (5, "unknown", "≥ 5")),
        ([("GRPO", FIVE)], (0, "unknown", "≥ 0")),
        ([("GRPO", ON_POLICY)], (None, "unknown", "–")),
    ],
)
def test_what_was_not_run_with_all_seeds_is_not_known(without, expected):
    assert survived(figure(without=without), "GRPO", "offset") == expected


def test_two_seeds_of_three_put_nothing_in_brackets():
    """Their interval is 12.7 standard errors wide to either side."""
    data = figure(spread=(-0.02, 0.0, 0.02), without=[("GRPO", FIVE, 0)])
    cells = {row[0]: row[2] for row in staleness.table(staleness.summary(data), "offset")}
    assert cells["GRPO"].startswith("0.610 ± 0.127")
    assert cells["GRPO"].endswith(" n=2")
    assert cells["REINFORCE"].startswith("(0.200")
    failing = figure(without=[("REINFORCE", FIVE, 0)])
    cells = {row[0]: row[2] for row in staleness.table(staleness.summary(failing), "offset")}
    assert cells["REINFORCE"].startswith("0.205")
    assert survived(failing, "REINFORCE", "offset") == (0, "unknown", "≥ 0")


@pytest.mark.parametrize(
    ("arm", "without", "expected"),
    [
        ("GRPO", [], "offset 20 and interval 20"),
        ("GRPO", [("GRPO", TWENTY)], "offset ≥ 5 and interval 20"),
        ("GRPO", [("GRPO", ON_POLICY)], "not known"),
        ("REINFORCE", [("REINFORCE", ON_POLICY)], "not known"),
    ],
)
def test_what_is_survived_in_words(arm, without, expected):
    found = staleness.summary(figure(without=without))
    assert staleness.survived_in_words(found, found["methods"][arm]) == expected


def test_an_older_summary_is_read_by_its_points():
    """It passed over what was not run, and did not say what comes next."""
    found = staleness.summary(figure(without=[("GRPO", FIVE)]))
    line = found["methods"]["GRPO"]["offset"]
    del line["beyond"]
    line["survives"] = 20
    assert staleness.survived(found, line, "offset") == "≥ 0"
    assert [row[-2] for row in staleness.table(found, "offset") if row[0] == "GRPO"] == ["≥ 0"]


def test_the_area_is_a_mean_on_a_logarithmic_axis():
    log = np.log
    offset, interval = (by_arm(figure(), form)["GRPO"].area for form in staleness.FORMS)
    first, second = log(6), log(21) - log(6)  # from 1 + 0 to 1 + 5 to 1 + 20
    assert offset == pytest.approx((0.6 * first + 0.65 * second) / log(21))
    assert interval == pytest.approx(0.6)  # offline is left out
    one_age = figure(without=[("GRPO", c) for c in COLUMNS if c != "on-policy"])
    assert by_arm(one_age, "offset")["GRPO"].area is None


def test_a_missing_age_is_a_dash_and_a_failed_one_in_brackets():
    data = figure(without=[("GRPO", "sync_offset = 5")])
    head, first, second = staleness.table(staleness.summary(data), "offset")
    assert head[1:4] == ["offset 0", "offset 5", "offset 20"]
    assert [first[0], first[2]] == ["GRPO", "–"]
    assert [first[4], second[0], second[4]] == ["≥ 0", "REINFORCE", "0"]
    assert second[2].startswith("(0.200 ± 0.025")  # t of two degrees of freedom, 4.303 · .01/√3


def test_the_time_of_a_step_stands_in_the_text_with_its_caveat_and_in_no_page():
    found = staleness.summary(figure())
    assert "ms a step" not in staleness.table(found, "offset")[0]
    assert [row[-1] for row in staleness.table(found, "offset", cost=True)] == [
        "ms a step", "500", "500",
    ]  # fmt: skip
    assert "it depends on the machine and" in staleness.text(found)


def test_a_method_without_an_area_stands_where_its_accuracy_belongs():
    def order(without, form="offset"):
        found = staleness.summary(figure(without=without))
        return [row[0] for row in staleness.table(found, form)[1:]]

    one_age = [("GRPO", column) for column in COLUMNS if column != TWENTY]
    assert order(one_age) == ["GRPO", "REINFORCE"]  # 0.7, above an area of 0.42
    ages = [c for c in COLUMNS if c not in ("offline", "sync_interval = 20")]
    no_areas = [(arm, column) for arm in ENDS for column in ages]
    assert order(no_areas, "interval") == ["REINFORCE", "GRPO"]  # offline 0.6 and 0.3


def test_the_picture_shows_its_data():
    drawing = picture.draw(figure())
    left, right = drawing.figure.get_axes()
    assert [text.get_text() for text in left.get_xticklabels()] == ["0", "5", "20"]
    assert [text.get_text() for text in right.get_xticklabels()] == ["1", "5", "20", "offline"]
    drawn = {c.get_label(): list(c[0].get_ydata()) for c in left.containers}
    assert drawn["GRPO"] == pytest.approx([0.6, 0.6, 0.7])
    assert {text.get_text() for text in left.texts} == set(ENDS)
    assert len(drawing.table) == len(ENDS) * 3 * (3 + 4)


def test_a_leader_begins_at_the_end_of_its_line_and_is_dotted_where_that_is_early():
    data = figure(without=[("GRPO", FIVE), ("GRPO", TWENTY)])
    left, right = picture.draw(data).figure.get_axes()
    drawn = {c.get_label(): c[0].get_xydata()[-1] for c in left.containers}
    leaders = {text.get_text(): text for text in left.texts}
    for name, end in drawn.items():
        assert leaders[name].xycoords == "data"
        assert leaders[name].xy == pytest.approx(tuple(end))
    dashes = {name: leader.arrow_patch.get_linestyle() for name, leader in leaders.items()}
    assert dashes == {"GRPO": ":", "REINFORCE": "-"}
    assert {text.arrow_patch.get_linestyle() for text in right.texts} == {"-"}


def at(*means: float, half: float = 0.01) -> list[staleness.Point]:
    return [
        staleness.Point(
            age=0, name=0, seeds=3, mean=mean, interval=(mean - half, mean + half), gain=0.0,
            gain_interval=None,
        )
        for mean in means
    ]  # fmt: skip


def test_panels_begin_at_the_data_and_at_0_where_these_come_near_it():
    low, high = picture._limits(at(0.6, 0.62), start=0.5)
    assert 0.48 < low < 0.5
    assert 0.62 < high < 0.65
    low, high = picture._limits(at(0.6, 0.05), start=0.5)
    assert -0.05 < low <= 0
    assert 0.6 < high < 0.7
    low, high = picture._limits(at(0.6, 0.62) + at(0.6, half=9), start=0.5)
    assert 0.48 < low < high < 0.65  # one wide interval


def touching(axes) -> list[tuple[str, str]]:
    """Neighbours under the axis whose texts overlap."""
    axes.figure.get_figure(root=True).canvas.draw()
    labels = axes.get_xticklabels()
    boxes = [label.get_window_extent() for label in labels]
    return [
        (one.get_text(), other.get_text())
        for (one, a), (other, b) in itertools.pairwise(zip(labels, boxes, strict=True))
        if a.overlaps(b) and not one.get_rotation()
    ]


def test_names_under_an_axis_do_not_touch():
    """All ages beside the longest name of a method; and columns with long names."""
    ages = {
        "on-policy": (1, 0), "offline": (None, 0),
        **{f"sync_interval = {n}": (n, 0) for n in (2, 5, 10, 20, 50, 100)},
        **{f"sync_offset = {n}": (1, n) for n in (1, 2, 5, 10, 20, 50, 100)},
    }  # fmt: skip
    long = "GRPO + KL, zero-variance masking"
    runs = [run_of(long, column, seed, 0.5) for column in ages for seed in range(2)]
    changes = {"arms": [long], "columns": list(ages), "runs": runs, "schedules": ages}
    left, right = picture.draw(dataclasses.replace(figure(), **changes)).figure.get_axes()
    assert not touching(left)
    assert not touching(right)
    assert {label.get_rotation() for label in right.get_xticklabels()} == {45}
    shares = ["no reward flipped", *(f"{n} % of rewards flipped" for n in (5, 10, 20))]
    runs = [run_of("GRPO", column, seed, 0.5) for column in shares for seed in range(2)]
    changes = {"arms": ["GRPO"], "columns": shares, "runs": runs, "schedules": {}}
    (axes,) = picture.draw(dataclasses.replace(figure(), **changes)).figure.get_axes()
    assert not touching(axes)
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {0}


RATES = {"rate 1.5e-5": 0.5, "rate 3e-5": 0.7, "rate 1.5e-4": 0.2}


def over_rates() -> FigureData:
    """GRPO is best in the middle; RLOO never rises."""
    ends = {"RLOO": dict.fromkeys(RATES, START), "GRPO": RATES}
    runs = [
        run_of(arm, column, seed, ends[arm][column] + off)
        for arm, column, (seed, off) in itertools.product(ends, RATES, enumerate(SPREAD))
    ]
    changes = {"arms": list(ends), "columns": list(RATES), "runs": runs, "schedules": {}}
    return dataclasses.replace(figure(), **changes)


def test_columns_that_are_no_ages_stand_in_their_order():
    found = staleness.summary(over_rates())
    assert found["ages"] == {"column": list(RATES)}
    head, first, second = staleness.table(found, "column")
    assert head == ["method", *RATES, "best"]
    assert (first[0], first[4]) == ("GRPO", "rate 3e-5")
    assert first[3].startswith("(0.200 ± 0.025")
    assert (second[0], second[4]) == ("RLOO", "rate 1.5e-5")  # the first of equals
    assert "survives" not in staleness.text(found)
    assert by_arm(over_rates(), "column")["GRPO"].area is None
    assert {row["age"] for row in staleness.tidy(over_rates())} == set(RATES)


def test_the_picture_has_columns_that_are_no_ages():
    (axes,) = picture.draw(over_rates()).figure.get_axes()
    names = [text.get_text().replace("\n", " ") for text in axes.get_xticklabels()]
    assert names == list(RATES)
    drawn = {c.get_label(): list(c[0].get_ydata()) for c in axes.containers}
    assert drawn["GRPO"] == pytest.approx(list(RATES.values()))
