"""The picture of a run: all panels of the run's metrics, with nothing on top of anything else."""

import io
import itertools
import re
from pathlib import Path

import pytest
from conftest import experiment
from rich.console import Console

from rec_experiments.runs.display import (
    PANELS,
    Reporter,
    curves,
    duration,
    introduce,
    say,
    summarise,
)
from rec_experiments.runs.metrics import label

STEPS = 100


def rows(scale: float) -> list[dict]:
    """A run whose metrics are of the size `scale`; accuracy and reward stay in [0, 1]."""
    return [
        {"step": step}
        | dict.fromkeys(PANELS[2:], scale * (1 + step / STEPS))
        | dict.fromkeys(PANELS[:2], step / STEPS)
        for step in range(STEPS + 1)
    ]


@pytest.mark.parametrize("scale", [1e-12, 12345.0])
def test_the_panels_do_not_overlap_and_stay_inside(scale):
    figure = curves(rows(scale), "a title")
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox() for axes in figure.axes] + [figure._suptitle.get_window_extent()]
    for box in boxes:
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)


def test_the_curves_are_the_rows():
    without_kl = [{k: v for k, v in row.items() if k != "train/kl"} for row in rows(1.0)]
    measured = [key for key in PANELS if key != "train/kl"]
    *axes, empty = curves(without_kl, "").axes
    assert [each.get_title() for each in axes] == [label(key) for key in measured]
    assert not empty.axison
    panels = dict(zip(measured, axes, strict=True))
    [line] = panels["train/entropy"].get_lines()
    assert line.get_xydata().tolist() == [[step, 1.0 + step / STEPS] for step in range(STEPS + 1)]
    kl = curves(rows(1.0), "").axes[2]
    assert kl.get_yscale() == "log"


def test_a_terminal_gets_whole_words():
    console = Console(file=io.StringIO(), force_terminal=True, width=40)
    words = ["data", *["number"] * 9, "a_path/" * 9]
    say(console, " ".join(words))
    lines = console.file.getvalue().splitlines()
    assert " ".join(lines).split() == words
    assert all(len(line) <= 40 for line in lines if "path" not in line)


def closing(rows: list[dict]) -> str:
    console = Console(file=io.StringIO(), width=100)
    summarise(console, rows, Path("folder"))
    return console.file.getvalue()


def test_the_closing_table_says_how_a_run_stands():
    rows = [
        {"step": step, "eval/accuracy": value} for step, value in enumerate((0.25, 0.5, 0.4375))
    ]
    text = closing([*rows, {"step": 3, "train/kl": 0.5}])
    assert "+0.188 since the start" in text
    cells = {
        line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:4]]
        for line in text.splitlines()
        if line.startswith("│")
    }
    assert cells["evaluation accuracy"] == ["0.250", "0.438"]
    assert cells["KL to the reference (nats/token)"] == ["0.500", "0.500"]
    assert "no evaluation" in closing([{"step": 0}])


def test_durations_have_the_unit_that_fits():
    spans = [duration(each) for each in (59.6, 600, 7200, 36000)]
    assert spans == ["60 s", "10 min", "2.0 h", "10.0 h"]


@pytest.mark.parametrize("terminal", [True, False])
def test_each_evaluation_leaves_a_line(terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal, width=80)
    with Reporter(console, STEPS) as reporter:
        for row in rows(1.0):
            reporter.row(row if row["step"] % 25 == 0 else {"step": row["step"], "train/reward": 0})
    said = re.findall(r"step +(\d+)/100 .*accuracy (\d\.\d+)", console.file.getvalue())
    assert said == [(str(step), f"{step / STEPS:.3f}") for step in range(0, STEPS + 1, 25)]


@pytest.mark.parametrize(
    ("changed", "said"), [((), "(Section 4.1)"), (("clip=ring", "steps=3"), "with clip=ring")]
)
def test_the_header_names_the_pieces_that_a_command_replaces(changed, said):
    command = ["algo=rec_oneside_nois", *changed]
    first, *_ = introduce(experiment(*command), command, Path("run"), (8, 4))
    assert first == f"algorithm   REC-OneSide-NoIS {said}"
