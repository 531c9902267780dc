"""The figures show what the run folders contain.

1. Smoothing has its closed form; only the training reward is smoothed.
2. Unfinished and missing runs are drawn as far as they go, and counted.
3. The lines of a figure are the data: metric, column, smoothing, logarithmic axis.
4. A method has the same look in every figure, and no two look alike in one.
5. Schedules and masks are drawn as their functions compute them.
6. Bad input is one line and exit code 2.
"""

import csv
import io
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
    write_run,
)
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from rec_experiments.algo.clips import OneSide, Ring, TwoSide
from rec_experiments.analysis.figures import computed, curves, render, style
from rec_experiments.analysis.figures.computed import fig2, fig8, section3, theorem1
from rec_experiments.analysis.results.figure import FigureRuns
from rec_experiments.cli.main import run_command
from rec_experiments.rollout.schedule import Schedule
from rec_experiments.sweeps import Panel
from rec_experiments.sweeps.manifest import Line


@pytest.fixture(scope="module")
def data() -> FigureRuns:
    return figure()


@pytest.fixture(scope="module")
def drawn(data) -> render.Drawing:
    return render.draw(data, window=3)


# Numbers -----------------------------------------------------------------------------------------


def test_a_running_average_of_the_training_reward():
    values = [0.0, 1.0, 0.0, np.inf, 1.0]  # what is not finite is left out
    rows = [{"step": n, "train/reward": x, "train/kl": x} for n, x in enumerate(values)]
    panels = [Panel(metric, metric, False) for metric in ("train/reward", "train/kl")]
    one = figure_of([(STABLE, "", 0, "done", rows)], panels=panels)
    points = curves.tidy(one, 3).groupby("metric")
    drawn = {metric: [*of["drawn"]] for metric, of in points}
    assert drawn["train/kl"] == [0.0, 1.0, 0.0, 1.0]
    assert drawn["train/reward"] == pytest.approx([0, 1 / 2, 1 / 3, 2 / 3])
    assert [*points.get_group("train/reward")["step"]] == [0, 1, 2, 4]
    assert curves.tidy(one, 1)["drawn"].tolist() == curves.tidy(one, 1)["value"].tolist()


# Pictures ----------------------------------------------------------------------------------------


def lines_of(drawing: render.Drawing, cell: int) -> list:
    """Mean curves of one panel: those with a marker that are not lines to a name."""
    axes = [axes for axes in drawing.figure.get_axes() if axes.axison][cell]
    marked = [line for line in axes.get_lines() if line.get_marker() != "None"]
    return [line for line in marked if line.get_linestyle() != "None"]


def test_lines_are_the_data(drawn):
    axes = drawn.figure.get_axes()
    assert len(axes) == 6
    assert [each.get_title() for each in axes[:2]] == COLUMNS
    assert [each.get_ylabel() for each in axes[::2]] == [panel.label for panel in PANELS]
    assert [each.get_yscale() for each in axes] == ["linear"] * 4 + ["log"] * 2
    assert axes[0].get_ylim() == axes[1].get_ylim()
    assert len(axes[0].collections) == 2  # one band for each method with several seeds
    _collapsing, stable, absent = lines_of(drawn, 2)  # reward, first column
    rewards_SI = np.array(
        [[row["train/reward"] for row in rows_of(STABLE, s)[1:]] for s in (0, 1, 2)]
    )
    expected_I = rewards_SI.mean(0)
    assert list(stable.get_xdata()) == list(range(1, STEPS + 1))
    np.testing.assert_allclose(stable.get_ydata()[:2], [expected_I[0], expected_I[:2].mean()])
    np.testing.assert_allclose(stable.get_ydata()[30], expected_I[28:31].mean())
    assert len(absent.get_xdata()) == 0
    partial = lines_of(drawn, 1)[1]  # accuracy, offline: seed 1 stopped at step 17
    assert list(partial.get_xdata()) == [0, 10]
    assert stable.get_color() == style.looks([STABLE])[STABLE].color


LONG = Panel(metric="train/clip_fraction", label="share of tokens that was clipped", log=True)


@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS[:1]], ids=["shared axes", "axes of each"])
def test_panels_and_labels_do_not_overlap(data, columns):
    """With a label of two lines and long tick labels."""
    runs = data.runs[data.runs["column"].isin(columns)]
    drawing = render.draw(replace(data, runs=runs, panels=[*PANELS, LONG]), window=3)
    drawing.figure.canvas.draw()
    panels = drawing.figure.subfigs[0]
    boxes = [axes.get_tightbbox() for axes in panels.axes if axes.axison]
    boxes.append(panels._suptitle.get_window_extent())
    assert len(boxes) == 4 * len(columns) + 1
    for box in boxes:
        assert (panels.bbox.x0 <= box.x0) & (box.x1 <= panels.bbox.x1)
        assert (panels.bbox.y0 <= box.y0) & (box.y1 <= panels.bbox.y1)
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)


def names_of_curves(drawing: render.Drawing) -> list:
    return [text for axes in drawing.figure.get_axes() for text in axes.texts]


def test_the_caption_counts_what_is_missing(data, drawn):
    found = drawn.caption
    assert "Synthetic runs." in found
    assert "Missing: REC-OneSide-NoIS (0.2), offline, seed 2; GRPO, sync_interval" in found
    assert "running average of 3 steps" in found
    assert "running average" not in render.draw(data, window=1).caption


def test_names_stand_beside_the_ends_of_their_curves(data, drawn):
    drawn.figure.canvas.draw()
    names = names_of_curves(drawn)
    assert sorted(name.get_text() for name in names) == sorted(data.arms)
    boxes = [name.get_window_extent() for name in names]
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    last = drawn.figure.get_axes()[1]
    for box in boxes:
        assert last.bbox.x1 < box.x0
        assert box.x1 <= drawn.figure.bbox.x1
    thin = [line for line in last.get_lines() if line.get_linewidth() < 1]
    starts = sorted(last.transAxes.transform([line.get_xydata()[0] for line in thin]).tolist())
    last_points = [each.get_xydata()[-1] for each in lines_of(drawn, 1) if len(each.get_xdata())]
    assert starts == pytest.approx(np.array(sorted(last.transData.transform(last_points).tolist())))
    ends = {
        arm: line.get_ydata()[-1]
        for arm, line in zip(data.arms, lines_of(drawn, 1), strict=True)
        if len(line.get_ydata())
    }
    heights = {name.get_text(): name.get_position()[1] for name in names}
    assert sorted(ends, key=ends.get) == sorted(ends, key=heights.get)


def test_many_names_stand_in_a_legend(data):
    arms = [*data.arms, *(f"method {i}" for i in range(12))]
    more = pandas.DataFrame({"arm": arms, "column": COLUMNS[0], "state": "missing"})
    runs = pandas.concat([data.runs, more])
    drawing = render.draw(replace(data, runs=runs), window=3)
    assert not names_of_curves(drawing)
    (legend,) = drawing.figure.subfigs[1].legends
    assert [text.get_text() for text in legend.get_texts()] == arms


def test_names_are_moved_no_farther_than_they_must_be():
    assert render.apart(np.array([0.1, 0.5, 0.9]), 0.1) == pytest.approx([0.1, 0.5, 0.9])
    assert render.apart(np.array([0.5, 0.5, 0.5]), 0.1) == pytest.approx([0.4, 0.5, 0.6])
    assert render.apart(np.array([0.98, 1.0, 1.0]), 0.1) == pytest.approx([0.8, 0.9, 1.0])
    assert render.apart(np.array([0.0, 0.0]), 0.2) == pytest.approx([0.0, 0.2])


def test_a_panel_without_values_is_named_instead_of_drawn(data):
    unknown = Panel(metric="train/unknown", label="unknown quantity", log=False)
    drawing = render.draw(replace(data, panels=[*PANELS, unknown]), window=3)
    labels = [axes.get_ylabel() for axes in drawing.figure.get_axes()]
    assert [each for each in labels if each] == [panel.label for panel in PANELS]
    assert "Not recorded in these runs: unknown quantity." in drawing.caption


def test_one_column_lays_its_panels_in_rows_of_three(data):
    panels = [Panel(metric=f"m{i}", label=f"metric {i}", log=True) for i in range(5)]
    rows = [{"step": s, **{f"m{i}": 10.0**i for i in range(5)}} for s in range(3)]
    one = figure_of([(STABLE, "interval", 0, "done", rows)], panels=panels)
    axes = render.draw(one, window=3).figure.get_axes()
    assert [each.get_ylabel() for each in axes if each.axison] == [p.label for p in panels]
    assert len(axes) == 6
    assert not axes[5].axison
    assert "interval over" not in render.draw(one, window=3).caption  # of a single run


def test_files_hold_the_data_and_are_reproducible(data, tmp_path):
    first = render.write(render.draw(data, window=3), tmp_path / "a")
    second = render.write(render.draw(data, window=3), tmp_path / "b")
    assert [path.name for path in first] == [
        f"figx.{s}" for s in ("png", "pdf", "csv", "json", "txt")
    ]
    for one, two in zip(first, second, strict=True):
        assert one.read_bytes() == two.read_bytes()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(p.name for p in first)
    with open(tmp_path / "a" / "figx.csv") as file:
        table = list(csv.DictReader(file))
    wanted = (STABLE, COLUMNS[0], "2", "train/reward")
    keys = ("arm", "column", "seed", "metric")
    cell = [float(row["value"]) for row in table if tuple(map(row.get, keys)) == wanted]
    assert cell == [row["train/reward"] for row in rows_of(STABLE, 2)[1:]]
    found = json.loads((tmp_path / "a" / "figx.json").read_text())
    assert found[0]["arm"] == COLLAPSING
    assert found[0]["final_low"] < found[0]["final"] < found[0]["final_high"]


@pytest.mark.parametrize("name", computed.COMPUTED)
def test_computed_figures_are_whole(name, tmp_path, monkeypatch):
    monkeypatch.setattr(theorem1, "CASES_PER_SIZE", 50)
    monkeypatch.setattr(section3, "STEPS", 200)
    drawing = computed.COMPUTED[name]()
    paths = render.write(drawing, tmp_path)
    assert drawing.name == name
    assert all(path.stat().st_size > 100 for path in paths)
    with open(tmp_path / f"{name}.csv") as file:
        assert len(list(csv.DictReader(file))) == len(drawing.table) > 0
    assert json.loads((tmp_path / f"{name}.json").read_text())


def value_of(drawing: render.Drawing, quantity: str):
    return drawing.statistics.set_index("quantity").loc[quantity, "value"]


def test_theorem_figure_counts_its_violations(monkeypatch):
    monkeypatch.setattr(theorem1, "CASES_PER_SIZE", 200)
    assert value_of(theorem1.draw(), "violations") == 0
    monkeypatch.setattr(
        theorem1.bandit, "improvement", lambda cases: np.full(len(cases.policy), -9.0)
    )
    assert value_of(theorem1.draw(), "violations") > 0


# Looks -------------------------------------------------------------------------------------------

ARMS = {  # the legends of the paper
    3: ["REINFORCE", "GRPO", "REC-OneSide-NoIS (0.2)", "REC-OneSide-IS (0.2)",
        "REC-OneSide-NoIS (0.6, 2.0)"],
    4: ["REC-OneSide-NoIS (0.2, 0.25)", "REC-OneSide-IS (0.2, 0.25)",
        "REC-Ring-NoIS (0.2, 0.25) & (0.6, 2.0)", "REC-OneSide-NoIS (0.6, 2.0)",
        "REC-TwoSide-NoIS (0.2, 0.25)", "REC-TwoSide-NoIS (0.6, 2.0)"],
    5: ["REINFORCE", "RED-Weight", "RED-Drop", "REC-OneSide-NoIS (0.6, 2.0)"],
    9: ["REINFORCE", "GRPO", "REC-TwoSide-NoIS (0.2)", "REC-TwoSide-IS (0.2)",
        "REC-Ring-NoIS (0.2, 0.2) & (0.6, 2.0)"],
    10: ["GRPO (0.2), lr 1e-5", "GRPO (0.2), lr 5e-6", "GRPO (0.2), lr 2e-6",
         "REC-OneSide-NoIS (0.2), lr 1e-5", "REC-OneSide-NoIS (0.2), lr 5e-6",
         "REC-OneSide-NoIS (0.2), lr 2e-6", "REC-OneSide-NoIS (0.6, 2.0), lr 1e-6",
         "REINFORCE, lr 2e-6"],
    11: ["REINFORCE", "REC-OneSide-NoIS (0.6, 2.0)", "OPMD (0.1)", "AsymRE (-0.1)"],
}  # fmt: skip


def test_no_two_methods_look_alike_in_a_figure():
    variants = [f"GRPO, lr {n}" for n in range(8)]
    for labels in (*ARMS.values(), ["MINE", "YOURS", "THEIRS"], variants):
        assert len(set(style.looks(labels).values())) == len(labels)


def test_a_method_looks_the_same_in_every_figure():
    seen: dict[str, style.Look] = {}
    for labels in ARMS.values():
        for label, look in style.looks(labels).items():
            if "lr" not in label:
                assert seen.setdefault(label, look) == look
    lr = style.looks(ARMS[10])
    assert {look.color for label, look in lr.items() if label.startswith("GRPO")} == {
        seen["GRPO"].color
    }


def test_importance_weights_are_dotted_and_wide_clips_darker():
    for side in ("REC-OneSide", "REC-TwoSide", "REC-Ring"):
        labels = [f"{side}-NoIS (0.2)", f"{side}-IS (0.2)", f"{side}-NoIS (0.6, 2.0)"]
        narrow, weighted, wide = style.looks(labels).values()
        assert (narrow.color, narrow.dash) == (weighted.color, style.SOLID)
        assert weighted.dash == style.DOTTED
        assert wide.dash == style.SOLID
        assert sum(to_rgb(wide.color)) < sum(to_rgb(narrow.color))


def test_a_method_of_another_package_has_a_colour_of_its_own_above_the_others():
    for known in ARMS.values():
        own, *others = style.looks(["MINE", *known]).values()
        assert own.color in style.PALETTE
        assert own.color not in {look.color for look in others}
        assert own.zorder > max(look.zorder for look in others)


# Schedule and masks ------------------------------------------------------------------------------


@pytest.mark.parametrize(("interval", "offset"), [(1, 0), (4, 0), (1, 4), (3, 2), (None, 0)])
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


def test_a_figure_with_runs_is_written(two_sweeps, tmp_path, capsys):
    out = tmp_path / "out"
    run_command("figures", "fig3", f"--out={out}", *OFFLINE)
    assert capsys.readouterr().out.startswith(f"fig3: {out}/fig3.png and .pdf, .csv, .json, .txt")
    assert len(list(out.iterdir())) == 5


def test_runs_can_lie_elsewhere(two_sweeps, tmp_path, capsys):
    moved = tmp_path / "moved"
    two_sweeps.rename(moved)
    error = refusal(["fig3", f"--out={tmp_path}/out", "seed=0"], capsys)
    assert "fig3: no run found" in error
    assert "python -m rec_experiments -m sweep=fig3 seed=0" in error
    assert not (tmp_path / "out").exists()
    (tmp_path / "empty").mkdir()
    places = f"--runs={tmp_path}/empty,{moved}"
    run_command("figures", "fig3", f"--out={tmp_path}/out", places, *OFFLINE)


def test_a_run_that_is_being_written_is_drawn(two_sweeps, tmp_path, capsys):
    run = two_sweeps / "one"
    (run / "status.json").write_text('{"state": "running"}')
    with open(run / "metrics.jsonl", "a") as rows:
        rows.write('{"step": 99, "eval/acc')  # half a row
    run_command("figures", "fig3", f"--out={tmp_path}/out", *OFFLINE)
    assert f"(running, step {STEPS})" in capsys.readouterr().out


def test_a_multirun_is_drawn_by_the_name_of_its_manifest(two_sweeps, tmp_path, capsys):
    lines = []
    for algo, seed in itertools.product(("grpo", "rloo"), range(2)):
        write_run(two_sweeps / f"{algo}{seed}", rows_of(STABLE, seed))
        words = f"steps=40 algo={algo} seed={seed}"
        lines.append(("multirun-1", algo.upper(), "interval 20", seed, f"{algo}{seed}", words))
    (two_sweeps / "manifests").mkdir()
    table = pandas.DataFrame(lines, columns=Line._fields)
    table.to_csv(two_sweeps / "manifests" / "multirun-1.csv", index=False)
    run_command("figures", "multirun-1", f"--out={tmp_path}/out")
    text = (tmp_path / "out" / "multirun-1.txt").read_text()
    assert text.startswith("steps=40\n")
    assert "mean and 95 % t interval over 2 seeds" in " ".join(text.split())
    assert {"GRPO", "RLOO"} == set(pandas.read_csv(tmp_path / "out" / "multirun-1.csv")["arm"])
    assert "multirun-1 is drawn with all" in refusal(["multirun-1", "seed=0"], capsys)
    capsys.readouterr()
    run_command("report", f"--out={tmp_path}/page.html")
    assert "multirun-1" in capsys.readouterr().out.partition("runs:")[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fig99"], "figure fig99: no such figure; did you mean fig9?"),
        (["fig3", "--smooth=0"], 'Invalid value "0" for --smooth. Must be >= 1; see '),
        (["fig3", "--runs=/nowhere"], "--runs=/nowhere: no such folder"),
        (["fig8", "seed=0"], "seed: fig8 is computed"),
        (["fig8", "--out=/dev/null/x"], "/dev/null/x: cannot be written (Not a directory)"),
    ],
)
def test_bad_input_is_one_line(two_sweeps, capsys, arguments, message):
    assert message in refusal(arguments, capsys)


def test_pictures_ignore_settings_of_matplotlib():
    """A user's settings may cut the margins of saved figures."""
    figure = Figure(figsize=(3.01, 2.03))
    figure.subplots()
    with matplotlib.rc_context({"savefig.bbox": "tight", "savefig.dpi": 40}):
        for quick in (True, False):
            found = Image.open(io.BytesIO(render.png(figure, 97, quick)))
            assert found.size == (int(3.01 * 97), int(2.03 * 97))
            assert found.convert("L").getextrema()[1] >= 254
