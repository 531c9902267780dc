"""The page says what the run folders say, without a network, and safely.

1. Figures without runs are not drawn; a run is one line, whatever the number of its figures.
2. Nothing from runs is ever markup or script.
3. The W&B Report has one panel grid per figure and one run set per arm, built without a network.
"""

import json
import shlex
import socket
from html.parser import HTMLParser
from pathlib import Path

import fabricated
import pytest
from conftest import resolve

from rec_experiments import sweeps
from rec_experiments.analysis.report import wandb_report
from rec_experiments.cli.main import run_command
from rec_experiments.common.errors import UserError

HOSTILE = '"></td><script>alert(1)</script><img src=http://x.test/y onerror=alert(1)>'
LINES = ["seed=0"]


def write_run(path: Path, words: list[str], state: str = "done", steps: int = 150) -> None:
    rows = [{"step": s, "train/reward": s / steps, "time/train": 1.5} for s in range(steps + 1)]
    rows[0]["eval/accuracy"], rows[-1]["eval/accuracy"] = 0.25, 0.75
    fabricated.write_run(path, rows, state, resolve(*words), words, reason=HOSTILE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """All runs of Figure 6 with one seed, one run of no sweep, and a damaged one."""
    folder = tmp_path_factory.mktemp("page") / "runs"
    figure = sweeps.load_figure("fig6", LINES)
    lines = []
    for number, point in enumerate(sweeps.points(figure, LINES)):
        words, run = point.overrides, f"run{number}"
        write_run(folder / run, words)
        label, heading = point.label, point.heading
        lines.append(["fig6", label, heading, 0, run, shlex.join(words)])
    lines.append(["fig11", *lines[0][1:]])
    write_run(folder / "loner", ["algo=opmd", "seed=7"], HOSTILE)
    write_run(folder / "bad", ["algo=opmd", "seed=8"])
    (folder / "bad" / "metrics.jsonl").write_text("x\n{}\n")
    fabricated.write_manifest(folder, lines, "fig6")
    return folder


@pytest.fixture(scope="module")
def html(folder) -> str:
    out = folder.parent / "new" / "page.html"
    run_command("report", f"--runs={folder}", f"--out={out}", *LINES)
    return out.read_text()


class Elements(HTMLParser):
    """All elements of a page with their attributes, and the cells of the table of runs."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data):
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


def test_a_run_is_one_line_with_its_numbers(html, folder):
    rows = Elements(html).rows
    head = next(n for n, row in enumerate(rows) if row[:1] == ["run"])
    runs = [dict(zip(rows[head], row, strict=True)) for row in rows[head + 1 :]]
    assert len(runs) == len(list(folder.glob("*/status.json")))
    first = next(run for run in runs if "fig6" in run["figures"])
    assert first["figures"] == "fig6, fig11"
    assert (first["seed"], first["state"], first["step"]) == ("0", "done", "150")
    assert (first["evaluation accuracy"], first["KL to the reference"]) == ("0.5", "")
    assert first["seconds"] == "226.5"
    loner = next(run for run in runs if run["seed"] == "7")
    assert (loner["run"], loner["figures"]) == ("OPMD", "")
    assert any("metrics.jsonl cannot be read" in run["note"] for run in runs)
    links = [attrs["href"] for tag, attrs in Elements(html).found if tag == "a"]
    assert "../runs/run0" in links


def test_figures_of_the_manifests_that_have_runs_are_drawn(html):
    assert html.count('<img src="data:image/png;base64,') == 1
    assert "Figure 6" in html
    assert "reinforce-collapses" not in html  # Figure 3 was not launched
    assert "supported" in html or "not run" in html


def test_text_of_runs_is_never_markup_and_nothing_is_loaded(html):
    elements = Elements(html).found
    assert sum(tag == "script" for tag, _ in elements) == 1
    assert not [attrs for _, attrs in elements if any(key.startswith("on") for key in attrs)]
    assert all(attrs["src"].startswith("data:") for _, attrs in elements if "src" in attrs)
    assert not any(attrs.get("href", "").startswith("http") for _, attrs in elements)
    assert "alert(1)" in html
    assert "url(" not in html


# W&B ------------------------------------------------------------------------------------------

ARMS = {"GRPO": ["grpo-0", "grpo-1"], 'it\'s "wide"': ['it\'s-"0"', "b-1"]}


def test_wandb_report_has_a_grid_a_figure_and_a_run_set_an_arm(monkeypatch):
    monkeypatch.delattr(socket, "getaddrinfo")
    monkeypatch.setattr(socket.socket, "connect", None)
    fig9, fig3 = map(sweeps.load_figure, ("fig9", "fig3"))
    sections = [(fig9, ARMS), (fig3, ARMS)]
    model = wandb_report.build("lab", "project", sections)._to_model()
    assert (model.project.entity_name, model.project.name) == ("lab", "project")
    spec = json.loads(model.spec.model_dump_json(by_alias=True, exclude_none=True))
    grid, _ = [block["metadata"] for block in spec["blocks"] if block["type"] == "panel-grid"]
    assert [each["name"] for each in grid["runSets"]] == list(ARMS)
    for run_set, names in zip(grid["runSets"], ARMS.values(), strict=True):
        (rule,) = run_set["filters"]["filters"]
        assert rule["key"] == {"section": "config", "name": "folder"}
        assert (rule["op"], rule["value"]) == ("IN", names)
        assert run_set["grouping"] == [{"section": "run", "name": "group"}]
    panels = grid["panelBankSectionConfig"]["panels"]
    shown = [(each["config"]["metrics"], each["config"]["yLogScale"]) for each in panels]
    assert shown == [([panel.metric], panel.log) for panel in fig9.panels]
    layouts = [each["layout"] for each in panels]
    assert len({(each["x"], each["y"]) for each in layouts}) == len(layouts)
    assert all(each["x"] + each["w"] <= wandb_report.COLUMNS for each in layouts)


def test_wandb_sections_are_those_of_the_sweep():
    [(figure, arms)] = wandb_report.sections(["fig6"], ["seed=0"])
    assert list(arms) == list(sweeps.load_figure("fig6").arms)
    assert arms == {job.label: [job.path.name] for job in sweeps.jobs(figure, ["seed=0"])}


def test_wandb_without_a_key_is_one_line(monkeypatch):
    import wandb

    monkeypatch.setattr(wandb, "login", lambda **options: False)
    with pytest.raises(UserError, match=r"^wandb=lab/project: needs a W&B key"):
        wandb_report.save(wandb_report.build("lab", "project", []))
