"""The figures show what the run folders contain.

1. Smoothing has its closed form; only the training reward is smoothed.
2. The lines of a figure are the data; unfinished and missing runs are drawn as far as they go.
3. A method has the same look in every figure, and no two look alike in one.
4. Schedules and masks are drawn as their functions compute them.
5. Bad input is one line and exit code 2.
"""

import itertools
import json
from dataclasses import replace

import matplotlib
import numpy as np
import pandas
import pytest
from fabricated import (
    COLLAPSING,
    COLUMNS,
    PANELS,
    STABLE,
    STEPS,
    figure,
    figure_of,
    rows_of,
    write_manifest,
    write_run,
)
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from rec_experiments.algo.clips import OneSide, Ring, TwoSide
from rec_experiments.analysis.figures import COMPUTED, catalogue, render, style
from rec_experiments.analysis.figures.computed import fig2, fig8, paper2, three_arms
from rec_experiments.analysis.results.figure import FigureRuns
from rec_experiments.cli.main import run_command
from rec_experiments.rollout.schedule import Schedule
from rec_experiments.sweeps import Panel


@pytest.fixture(scope="module")
def data() -> FigureRuns:
    return figure()


@pytest.fixture(scope="module")
def drawn(data) -> render.Drawing:
    return render.draw(data, window=3)


def test_a_running_average_of_the_training_reward():
    values = [0.0, 1.0, 0.0, np.inf, 1.0]  # what is not finite is left out
    rows = [{"step": n, "train/reward": x, "train/kl": x} for n, x in enumerate(values)]
    panels = [Panel(metric, metric, False) for metric in ("train/reward", "train/kl")]
    one = figure_of([(STABLE, "", 0, "done", rows)], panels=panels)
    points = render.tidy(one, 3).groupby("metric")
    drawn = {metric: [*of["drawn"]] for metric, of in points}
    assert drawn["train/kl"] == [0.0, 1.0, 0.0, 1.0]
    assert drawn["train/reward"] == pytest.approx([0, 1 / 2, 1 / 3, 2 / 3])
    assert [*points.get_group("train/reward")["step"]] == [0, 1, 2, 4]
    assert render.tidy(one, 1)["drawn"].tolist() == render.tidy(one, 1)["value"].tolist()


# Pictures ----------------------------------------------------------------------------------------


def test_lines_are_the_data(drawn):
    axes = drawn.figure.get_axes()
    assert len(axes) == 6
    assert [each.get_title() for each in axes[:2]] == COLUMNS
    assert [each.get_ylabel() for each in axes[::2]] == [panel.label for panel in PANELS]
    assert [each.get_yscale() for each in axes] == ["linear"] * 4 + ["log"] * 2
    assert axes[0].get_ylim() == axes[1].get_ylim()
    _collapsing, stable = axes[2].get_lines()  # reward, first column
    rewards_SI = np.array(
        [[row["train/reward"] for row in rows_of(STABLE, s)[1:]] for s in (0, 1, 2)]
    )
    expected_I = rewards_SI.mean(0)
    assert list(stable.get_xdata()) == list(range(1, STEPS + 1))
    np.testing.assert_allclose(stable.get_ydata()[:2], [expected_I[0], expected_I[:2].mean()])
    np.testing.assert_allclose(stable.get_ydata()[30], expected_I[28:31].mean())
    partial = axes[1].get_lines()[1]  # accuracy, offline: seed 1 stopped at step 17
    assert list(partial.get_xdata()) == [0, 10]
    assert stable.get_color() == style.looks([STABLE])[STABLE].color


def test_bands_are_drawn_and_do_not_widen_the_axes():
    """Two seeds far apart: the interval is twelve times as wide as their distance."""
    rows = [[{"step": step, "m": float(height)} for step in range(3)] for height in (1, 2)]
    runs = [(STABLE, "", seed, "done", rows[seed]) for seed in (0, 1)]
    one = figure_of(runs, panels=[Panel("m", "m", False)])
    (axes,) = [each for each in render.draw(one, 1).figure.get_axes() if each.axison]
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    half = 12.706 * 0.5  # t of one degree of freedom, times the standard error
    assert (heights.min(), heights.max()) == pytest.approx((1.5 - half, 1.5 + half), rel=1e-3)
    assert axes.get_ylim()[1] < 2


def test_a_curve_of_one_point_is_drawn():
    figure = Figure()
    axes, canvas = figure.subplots(), FigureCanvasAgg(figure)
    mean = render.band(pandas.DataFrame({"run": [0.5]}, index=[10]))
    render._draw_curves(axes, {"A": mean}, style.looks(["A"]), log=False)
    axes.set_axis_off()
    canvas.draw()
    assert (np.asarray(canvas.buffer_rgba()) != 255).any()


LONG = Panel(metric="train/clip_fraction", label="share of tokens that was clipped", log=True)


@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS[:1]], ids=["shared axes", "axes of each"])
def test_panels_title_and_legend_do_not_overlap(data, columns):
    """With a label of two lines, a long title, and more methods than a legend has lines."""
    arms = [*data.arms, *(f"method {i}" for i in range(45))]
    more = pandas.DataFrame({"arm": arms, "column": columns[0], "state": "missing"})
    runs = pandas.concat([data.runs[data.runs["column"].isin(columns)], more])
    about = {"runs": runs, "panels": [*PANELS, LONG], "title": "A long title " * 12}
    figure = render.draw(replace(data, **about), window=3).figure
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == len(arms)
    boxes = [axes.get_tightbbox() for axes in figure.axes if axes.axison]
    boxes += [legend.get_window_extent(), figure._suptitle.get_window_extent()]
    assert len(boxes) == 4 * len(columns) + 2
    for box in boxes:
        assert (figure.bbox.x0 <= box.x0) & (box.x1 <= figure.bbox.x1)
        assert (figure.bbox.y0 <= box.y0) & (box.y1 <= figure.bbox.y1)
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)


def test_the_legend_is_in_the_order_in_which_the_curves_end(data, drawn):
    (legend,) = drawn.figure.legends
    ends = [line.get_ydata()[-1] for line in drawn.figure.get_axes()[1].get_lines()]
    assert ends[0] < ends[1]
    names = [text.get_text() for text in legend.get_texts()]
    assert names == [data.arms[1], data.arms[0], *data.arms[2:]]


def test_the_caption_counts_what_is_missing(data, drawn):
    found = drawn.caption
    assert "Synthetic runs." in found
    assert "Missing: REC-OneSide-NoIS (0.2), offline, seed 2; GRPO, sync_interval" in found
    assert "running average of 3 steps" in found
    assert "running average" not in render.draw(data, window=1).caption


def test_a_panel_without_values_is_named_instead_of_drawn(data):
    unknown = Panel(metric="train/unknown", label="unknown quantity", log=False)
    drawing = render.draw(replace(data, panels=[*PANELS, unknown]), window=3)
    labels = [axes.get_ylabel() for axes in drawing.figure.get_axes()]
    assert [each for each in labels if each] == [panel.label for panel in PANELS]
    assert "Not recorded in these runs: unknown quantity." in drawing.caption


def test_one_column_lays_its_panels_in_rows_of_three(data):
    panels = [Panel(metric="m", label=f"metric {i}", log=True) for i in range(5)]
    rows = [{"step": s, "m": 10.0} for s in range(3)]
    drawing = render.draw(figure_of([(STABLE, "", 0, "done", rows)], panels=panels), window=3)
    shown = [axes.get_ylabel() for axes in drawing.figure.get_axes() if axes.axison]
    assert shown == [panel.label for panel in panels]
    assert len(drawing.figure.get_axes()) == 6
    assert "interval over" not in drawing.caption  # of a single run


def test_files_hold_the_data_and_are_reproducible(data, tmp_path):
    first, second = (render.write(render.draw(data, 3), tmp_path / name) for name in "ab")
    assert [path.suffix for path in first] == [".png", ".pdf", ".csv", ".json", ".txt"]
    with matplotlib.rc_context({"savefig.bbox": "tight", "savefig.dpi": 40}):  # a user's settings
        third = render.write(render.draw(data, 3), tmp_path / "c")
    for one, *others in zip(first, second, third, strict=True):
        assert {one.read_bytes()} == {other.read_bytes() for other in others}
    table = pandas.read_csv(first[2])
    chosen = (table["arm"] == STABLE) & (table["column"] == COLUMNS[0]) & (table["seed"] == 2)
    values = table[chosen & (table["metric"] == "train/reward")]["value"]
    assert values.tolist() == [row["train/reward"] for row in rows_of(STABLE, 2)[1:]]
    found = json.loads(first[3].read_text())
    assert found[0]["arm"] == COLLAPSING
    assert found[0]["final_low"] < found[0]["final"] < found[0]["final_high"]


@pytest.mark.parametrize("name", COMPUTED)
def test_computed_figures_are_whole(name, tmp_path, monkeypatch):
    monkeypatch.setattr(paper2, "CASES_PER_SIZE", 50)
    monkeypatch.setattr(three_arms, "STEPS", 200)
    drawing = catalogue.draw(name, None)
    paths = render.write(drawing, tmp_path)
    assert drawing.name == name
    assert all(path.stat().st_size > 100 for path in paths)
    assert len(pandas.read_csv(tmp_path / f"{name}.csv")) == len(drawing.table) > 0


def value_of(drawing: render.Drawing, quantity: str):
    return drawing.statistics.set_index("quantity").loc[quantity, "value"]


def test_theorem_figure_counts_its_violations(monkeypatch):
    monkeypatch.setattr(paper2, "CASES_PER_SIZE", 200)
    assert value_of(paper2.theorem(), "violations") == 0
    monkeypatch.setattr(
        paper2.bandit, "improvement", lambda cases: np.full(len(cases.policy), -9.0)
    )
    assert value_of(paper2.theorem(), "violations") > 0


# Looks -------------------------------------------------------------------------------------------

ARMS = {  # legends of the paper, by figure
    3: ["REINFORCE", "GRPO", "REC-OneSide-NoIS (0.2)", "REC-OneSide-IS (0.2)",
        "REC-OneSide-NoIS (0.6, 2.0)"],
    4: ["REC-OneSide-NoIS (0.2, 0.25)", "REC-OneSide-IS (0.2, 0.25)",
        "REC-Ring-NoIS (0.2, 0.25) & (0.6, 2.0)", "REC-OneSide-NoIS (0.6, 2.0)",
        "REC-TwoSide-NoIS (0.2, 0.25)", "REC-TwoSide-NoIS (0.6, 2.0)"],
    10: ["GRPO (0.2), lr 1e-5", "GRPO (0.2), lr 5e-6", "GRPO (0.2), lr 2e-6",
         "REC-OneSide-NoIS (0.2), lr 1e-5", "REC-OneSide-NoIS (0.2), lr 5e-6",
         "REC-OneSide-NoIS (0.2), lr 2e-6", "REC-OneSide-NoIS (0.6, 2.0), lr 1e-6"],
    11: ["REINFORCE", "REC-OneSide-NoIS (0.6, 2.0)", "OPMD (0.1)", "AsymRE (-0.1)"],
}  # fmt: skip


def test_no_two_methods_look_alike_in_a_figure():
    variants = [f"GRPO, lr {n}" for n in range(8)]
    for labels in (*ARMS.values(), ["MINE", "YOURS", "THEIRS"], variants):
        assert len(set(style.looks(labels).values())) == len(labels)


def test_a_method_looks_the_same_in_every_figure():
    looks = {n: style.looks(labels) for n, labels in ARMS.items()}
    for arm in ("REINFORCE", "REC-OneSide-NoIS (0.6, 2.0)"):
        assert looks[3][arm] == looks[11][arm]
    rates = {look.color for arm, look in looks[10].items() if arm.startswith("GRPO")}
    assert rates == {looks[3]["GRPO"].color}


def test_importance_weights_are_dotted_and_wide_clips_darker():
    labels = ["REC-Ring-NoIS (0.2)", "REC-Ring-IS (0.2)", "REC-Ring-NoIS (0.6, 2.0)"]
    narrow, weighted, wide = style.looks(labels).values()
    assert (narrow.color, narrow.dash) == (weighted.color, style.SOLID)
    assert (weighted.dash, wide.dash) == (style.DOTTED, style.SOLID)
    assert sum(to_rgb(wide.color)) < sum(to_rgb(narrow.color))


def test_a_method_of_another_package_has_a_colour_of_its_own_above_the_others():
    own, *others = style.looks(["MINE", *ARMS[3]]).values()
    assert own.color in {*style.PALETTE} - {look.color for look in others}
    assert own.zorder > max(look.zorder for look in others)


# Schedule and masks ------------------------------------------------------------------------------


@pytest.mark.parametrize(("interval", "offset"), [(4, 0), (3, 2), (None, 0)])
def test_timeline_obeys_the_schedule(interval, offset):
    schedule = Schedule(interval=interval, offset=offset, phase="paper")
    slots = fig2.timeline(schedule, 12)
    for slot in slots:
        trained_before = sum(other.trained + 1 <= slot.drawn for other in slots)
        assert schedule.version(slot.batch) <= trained_before
        assert slot.drawn + 1 <= slot.trained
    for one, two in itertools.pairwise(slots):
        assert one.drawn + 1 <= two.drawn
        assert one.trained + 1 <= two.trained
    assert slots[0].trained == max(1, offset)


def test_active_regions_are_those_of_the_equations():
    rho = fig8.RATIOS
    expected = {
        (OneSide, 1): rho <= 1.2,
        (OneSide, -1): rho >= 0.8,
        (TwoSide, 1): (rho >= 0.8) & (rho <= 1.2),
        (TwoSide, -1): (rho >= 0.8) & (rho <= 1.2),
        (Ring, 1): (rho <= 0.4) | (rho >= 0.8) & (rho <= 1.2),
        (Ring, -1): (rho >= 3) | (rho >= 0.8) & (rho <= 1.2),
    }
    for clip in fig8.MASKS.values():
        for sign in (1, -1):
            found = fig8.active_ratios(clip, float(sign))
            np.testing.assert_array_equal(found, expected[type(clip), sign])
    assert value_of(fig8.draw(), "REC-Ring (0.2) & (0.6, 2.0), A > 0") == [
        "0.00 ≤ ρ ≤ 0.40",
        "0.80 ≤ ρ ≤ 1.20",
    ]


# Command line ------------------------------------------------------------------------------------


OFFLINE = ("sync=offline", "steps=40", "seed=0")


@pytest.fixture
def two_sweeps(tmp_path, monkeypatch):
    """Figure 3 with one finished run in another folder; other sweeps have none."""
    root = tmp_path / "runs"
    command = "python -m rec_experiments setting=mini/gsm8k sync=offline algo=grpo steps=40 seed=0"
    write_run(root / "one", rows_of(STABLE, 0), command=command.split())
    monkeypatch.chdir(tmp_path)
    return root


def refusal(arguments: list[str], capsys) -> str:
    with pytest.raises(SystemExit) as caught:
        run_command("figures", *arguments)
    error = capsys.readouterr().err
    assert caught.value.code == 2
    assert error.count("\n") == 1
    return error


def test_runs_can_lie_elsewhere(two_sweeps, tmp_path, capsys):
    moved = tmp_path / "moved"
    two_sweeps.rename(moved)
    error = refusal(["fig3", f"--out={tmp_path}/out", "seed=0"], capsys)
    assert "fig3: no run found" in error
    assert "python -m rec_experiments -m sweep=fig3 seed=0" in error
    assert not (tmp_path / "out").exists()
    run_command("figures", "fig3", f"--out={tmp_path}/out", f"--runs={tmp_path},{moved}", *OFFLINE)


def test_a_run_that_is_being_written_is_drawn(two_sweeps, tmp_path, capsys):
    run = two_sweeps / "one"
    (run / "status.json").write_text('{"state": "running"}')
    with open(run / "metrics.jsonl", "a") as rows:
        rows.write('{"step": 99, "eval/acc')  # half a row
    out = tmp_path / "out"
    run_command("figures", "fig3", f"--out={out}", *OFFLINE)
    printed = capsys.readouterr().out
    assert printed.startswith(f"fig3: {out}/fig3.png and .pdf, .csv, .json, .txt")
    assert f"(running, step {STEPS})" in printed
    assert len(list(out.iterdir())) == 5


def test_a_multirun_is_drawn_by_the_name_of_its_manifest(two_sweeps, tmp_path, capsys):
    lines = []
    for algo, seed in itertools.product(("grpo", "rloo"), range(2)):
        write_run(two_sweeps / f"{algo}{seed}", rows_of(STABLE, seed))
        words = f"steps=40 algo={algo} seed={seed}"
        lines.append(("multirun-1", algo.upper(), "interval 20", seed, f"{algo}{seed}", words))
    write_manifest(two_sweeps, lines, "multirun-1")
    run_command("figures", "multirun-1", f"--out={tmp_path}/out")
    text = (tmp_path / "out" / "multirun-1.txt").read_text()
    assert text.startswith("steps=40\n")
    assert "mean and 95 % t interval over 2 seeds" in " ".join(text.split())
    assert {"GRPO", "RLOO"} == set(pandas.read_csv(tmp_path / "out" / "multirun-1.csv")["arm"])
    assert "multirun-1 is drawn with all" in refusal(["multirun-1", "seed=0"], capsys)
    capsys.readouterr()
    run_command("report", f"--out={tmp_path}/page.html")
    assert "multirun-1" in capsys.readouterr().out.partition("runs:")[0]
