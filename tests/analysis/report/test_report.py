"""The page says what the run folders say, without a network, and safely.

1. Differences between arms are those of the method, not of missing runs.
2. Responses are those of the first, a middle and the last evaluation; long ones are shortened.
3. Nothing from runs is ever markup or script; the page's policy allows its own script only.
4. The W&B Report has one panel grid per figure and one run set per arm, built without a network.
5. Bad input is one line and exit code 2.
"""

import base64
import dataclasses
import hashlib
import itertools
import json
import re
import shutil
import socket
from html.parser import HTMLParser
from pathlib import Path

import fabricated
import pytest
import yaml
from conftest import resolve
from fabricated import sample, write_lines

from rec_experiments import sweeps
from rec_experiments.analysis import claims
from rec_experiments.analysis.report import contents as reading
from rec_experiments.analysis.report import page, wandb_report
from rec_experiments.analysis.results.figure_data import FigureData, NoRuns
from rec_experiments.analysis.results.runs import read_run
from rec_experiments.cli import report as report_command
from rec_experiments.cli.main import run_command
from rec_experiments.errors import UserError

HOSTILE = (
    "</script><script>throw Error('run')</script><img src=http://x.test/y onerror=alert(1)>&amp;"
)
ARMS = {
    "REINFORCE": ["algo=reinforce"],
    "GRPO": ["algo=grpo"],
    'REC <b>"wide"</b>': ["algo=rec_oneside_nois", "clip.low=0.6", "clip.high=2.0"],
}
COLUMNS = {"interval 20": "sync=interval20", "offline": "sync=offline"}
SEEDS = (0, 1)
MISSING = ("GRPO", "offline", 1)
FAILED = ("REINFORCE", "offline", 0)


def write_run(path: Path, config: dict, state: str = "done", **status: str) -> None:
    rows: list[dict] = [{"step": 0, "eval/accuracy": 0.25}]
    rows += [{"step": s, "train/reward": s / 4, "time/train": 1.5} for s in (1, 2, 3)]
    rows[-1]["eval/accuracy"] = 0.75
    fabricated.write_run(path, rows, state, config, ["python", "-m", "run"], **status)
    write_lines(path / "samples.jsonl", [sample(s, f"{HOSTILE} at {s}") for s in range(4)])
    with (path / "samples.jsonl").open("a") as file:
        file.write('{"st')  # a line that is being written


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> FigureData:
    """Three arms, two schedules, two seeds; one run is missing, one failed."""
    folder = tmp_path_factory.mktemp("runs")
    runs = []
    for (arm, overrides), (column, schedule) in itertools.product(ARMS.items(), COLUMNS.items()):
        config = resolve(*overrides, schedule)
        for seed in SEEDS:
            path = folder / f"run{len(runs)}"
            if (arm, column, seed) != MISSING:
                failed = (arm, column, seed) == FAILED
                status = {"state": "failed", "reason": HOSTILE} if failed else {}
                write_run(path, {**config, "seed": seed}, **status)
            runs.append(read_run(arm, column, seed, path))
    return FigureData(
        name="fig3",
        title="Figure 3: <REC>",
        caption="A caption.",
        scale="mini",
        claim_seeds=list(range(10)),
        shown=list(SEEDS),
        arms=list(ARMS),
        columns=list(COLUMNS),
        panels=[sweeps.Panel(metric="eval/accuracy", label="evaluation accuracy", log=False)],
        runs=runs,
    )


def only(data: FigureData):
    """Stands in for `collect`: Figure 3 has runs, no other figure has any."""

    def collect(name: str, *_: object, for_claims: bool) -> FigureData:
        if name == "fig3":
            return data
        raise NoRuns(name)

    return collect


@pytest.fixture(scope="module")
def found(data) -> reading.Contents:
    """The contents of fig3, fig8, a figure without runs, and a run of no figure."""

    folder = data.runs[0].path.parent
    write_run(folder / "loner", resolve("algo=opmd", "seed=7"), "running")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "collect", only(data))
        patch.setattr(reading, "figure_of", lambda name, overrides: (name, overrides))
        patch.setattr(reading, "begun", lambda name, *_: (int(name == "fig3"), 1))
        return reading.gather(["fig3", "fig8", "fig99"], [folder], [], every_run=True)


@pytest.fixture(scope="module")
def html(found) -> str:
    return page.render(found, "today", Path())


class Elements(HTMLParser):
    """All elements of a page with their attributes, and the text of scripts that hold data."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_differences_are_those_of_the_method(data, found):
    differences = found.figures[0].differences
    assert differences.arms == list(ARMS)
    table = {key: values for key, *values in differences.table}
    assert table["advantage._target_"] == ["GroupMean", "GroupStandard", "GroupMean"]
    assert table["clip.low"] == ["", "0.2", "0.6"]
    assert table["weight._target_"] == ["NoWeight", "ImportanceWeight", "NoWeight"]
    # Schedule and seed vary within every arm; a missing run makes no difference of them.
    assert not [key for key in table if key.startswith(("sync.", "seed", "algo."))]


def test_runs_carry_their_numbers_and_places(found):
    runs = {run.path.name: run for run in found.runs}
    assert len(runs) == 12
    first = runs["run0"]
    assert (first.algorithm, first.schedule, first.seed) == ("REINFORCE", "interval 20", 0)
    assert (first.step, first.accuracies, first.seconds) == (3, [0.25, 0.75], 4.5)
    assert (first.final, first.reward, first.kl) == (0.5, 0.5, None)
    assert [(p.figure, p.arm, p.column) for p in first.places] == [
        ("fig3", "REINFORCE", "interval 20")
    ]
    assert (runs["loner"].places, runs["loner"].state) == ([], "running")
    assert runs["run2"].reason == HOSTILE
    assert found.without_runs == ["fig99"]
    assert "Runs of release 12." in found.figures[0].notes


def test_only_chosen_figures_bring_their_runs(data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "collect", only(data))
        patch.setattr(reading, "figure_of", lambda name, overrides: (name, overrides))
        patch.setattr(reading, "begun", lambda name, *_: (int(name == "fig3"), 1))
        chosen = reading.gather(["fig3"], [data.runs[0].path.parent], [], every_run=False)
    assert "loner" not in {run.path.name for run in chosen.runs}
    assert chosen.claims
    assert {each.claim.primary.figure for each in chosen.claims} == {"fig3"}


def test_figures_leave_out_the_seeds_of_claims(data, found):
    """But the table of runs and the verdicts have them."""
    first = dataclasses.replace(data, shown=[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "collect", only(first))
        one = reading.gather(["fig3"], [data.runs[0].path.parent], [], every_run=False)
    assert "A quick look at 1 seed; claims need 10." in one.figures[0].notes
    assert "A quick look at 2 seeds; claims need 10." in found.figures[0].notes
    assert {run.seed for run in one.runs} == {0, 1}
    collapse = next(each for each in one.claims if each.claim.id == "reinforce-collapses")
    assert collapse.title == "not run at mini at 3.0e-05"


@pytest.mark.parametrize(
    ("steps", "shown"), [([], []), ([0], [0]), ([0, 9], [0, 9]), ([0, 1, 2, 3, 4], [0, 2, 4])]
)
def test_first_middle_and_last_evaluation(steps, shown):
    rows = [{"step": step, "response": f"{step}{k}"} for step in steps for k in "ab"]
    evaluations = reading.evaluations(rows)
    assert [each.step for each in evaluations] == shown
    for each in evaluations:
        assert [row["response"] for row in each.responses] == [f"{each.step}a", f"{each.step}b"]


def test_a_run_in_two_folders_is_one_run(data, tmp_path):
    for folder, state in (("a", "failed"), ("b", "done")):
        copy = shutil.copytree(data.runs[0].path, tmp_path / folder / "run")
        (copy / "status.json").write_text(json.dumps({"state": state}))
    [run] = reading.gather([], [tmp_path / "a", tmp_path / "b"], [], every_run=True).runs
    assert run.state == "done"


DAMAGE = {
    "config.yaml": ["", "{", "[]", "algo: 3", "\x00"],
    "provenance.json": ["", "{", "[]", '{"command": 3}'],
    "status.json": ["", "{", "[]"],
    "samples.jsonl": ["x\n{}\n", '[]\n{"step": 1}\n'],
    "metrics.jsonl": ["x\n{}\n", '{"step": 1, "time/train": "x", "eval/accuracy": 1}\n'],
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_run_is_left_out_and_named(data, name, tmp_path, capsys):
    for number, text in enumerate(DAMAGE[name]):
        shutil.copytree(data.runs[0].path, tmp_path / f"bad{number}")
        (tmp_path / f"bad{number}" / name).write_text(text)
    shutil.copytree(data.runs[1].path, tmp_path / "good")
    found = reading.gather([], [tmp_path], [], every_run=True)
    assert [run.path.name for run in found.runs] == ["good"]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(found.left_out) == len(DAMAGE[name])
    for number, line in enumerate(sorted(said)):
        assert line.startswith(f"left out: run folder {tmp_path / f'bad{number}'}: ")
    assert "Left out: run folder" in page.render(found, "today", tmp_path)


def test_a_figure_leaves_out_damaged_runs(data):
    paths = [run.path for run in data.runs]
    for damaged in (3, 6):
        kept = reading.without(data, paths[:damaged])
        assert {run.path for run in kept.missing} == {*paths[:damaged], paths[7]}
        assert kept.runs[damaged:] == data.runs[damaged:]


def test_long_responses_are_shortened():
    whole = "x" * page.SAMPLE_CHARACTERS
    assert page.shortened(whole + 17 * "x") == f"{whole}… (17 more characters)"
    assert page.shortened(whole) == whole


def test_text_of_runs_is_never_markup(html):
    elements = Elements(html).found
    assert sum(tag == "script" for tag, _ in elements) == 3
    assert not [attributes for _, attributes in elements if "onerror" in attributes]
    assert all(
        attributes["src"].startswith("data:") for tag, attributes in elements if tag == "img"
    )
    assert not any(tag in ("b", "rec") for tag, _ in elements)


SCRIPT = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


def test_no_value_of_any_file_is_markup(data, tmp_path):
    """All texts of a run's files, and numbers that may be texts, are scripts."""
    path = Path(shutil.copytree(data.runs[0].path, tmp_path / "run"))
    config = yaml.safe_load((path / "config.yaml").read_text())
    config["steps"] = config["seed"] = config["algo"]["name"] = SCRIPT
    config["sync"] = {"interval": 3, "offset": 2, "phase": SCRIPT}
    (path / "config.yaml").write_text(json.dumps(config))
    origin = json.loads((path / "provenance.json").read_text())
    origin = dict.fromkeys(origin, SCRIPT) | {
        "command": [SCRIPT], "release": 12,
    }  # fmt: skip
    (path / "provenance.json").write_text(json.dumps(origin))
    (path / "status.json").write_text(json.dumps({"state": SCRIPT, "reason": SCRIPT}))
    row = {"step": 0, "prompt": SCRIPT, "response": "\ud800", "answer": SCRIPT, "reward": SCRIPT}
    (path / "samples.jsonl").write_text(json.dumps(row) + "\n")
    found = reading.gather([], [tmp_path], [], every_run=True)
    assert len(found.runs) == 1
    text = page.render(found, "today", tmp_path).encode(errors="replace").decode()
    elements = Elements(text).found
    assert [tag for tag, _ in elements].count("script") == 3
    assert "img" not in [tag for tag, _ in elements]
    handlers = [key for _, attributes in elements for key in attributes if key.startswith("on")]
    assert handlers == []
    assert "alert(1)" in text


def test_the_policy_knows_the_pages_own_script_and_style(html):
    [policy] = [a["content"] for _, a in Elements(html).found if a.get("http-equiv")]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert "unsafe-inline" not in policy
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        [own] = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert not any("style" in attributes for _, attributes in Elements(html).found)


def test_sections_are_in_order(html):
    names = re.findall(r"<h2>(.*?)</h2>", html)
    assert names == [
        "Claims", "Runs", "Curves", "Figures", "Differences between arms", "Responses",
    ]  # fmt: skip


def test_samples_are_unchanged(html, found):
    text = re.search(r'id="samples-data">(.*?)</script>', html, re.DOTALL)[1]
    samples = json.loads(text)
    assert len(samples["runs"]) == len(found.runs)
    responses = [each["responses"][0]["response"] for each in samples["runs"][0]]
    assert responses == [f"{HOSTILE} at {step}" for step in (0, 2, 3)]
    assert ["fig3", 'REC <b>"wide"</b>', "offline", "seed 1"] in [p[:4] for p in samples["places"]]


def test_page_links_to_nothing_outside(html):
    for tag, attributes in Elements(html).found:
        for key in ("src", "href", "action", "srcset", "poster"):
            if key in attributes:
                inside = ("data:", "#", "./") if tag == "a" else ("data:", "#")
                assert attributes[key].startswith(inside), (tag, attributes)
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style
    assert "default-src 'none'" in html


# W&B ------------------------------------------------------------------------------------------

SECTIONS = [
    wandb_report.Section(
        title="Figure 3",
        caption="A caption.",
        panels=[
            sweeps.Panel("eval/accuracy", "evaluation accuracy", False),
            sweeps.Panel("train/reward", "training reward", False),
            sweeps.Panel("train/kl", "KL", True),
        ],
        arms={"GRPO": ["grpo-0", "grpo-1"], 'it\'s "wide"': ['it\'s-"0"', "b-1"]},
    ),
    wandb_report.Section(
        title="Figure 5",
        caption="Another.",
        panels=[sweeps.Panel("train/reward", "training reward", False)],
        arms={"REINFORCE": ["r-0"]},
    ),
]


def test_wandb_report_has_a_grid_a_figure_and_a_run_set_an_arm(monkeypatch):
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    model = wandb_report.build("lab", "project", SECTIONS)._to_model()
    assert (model.project.entity_name, model.project.name) == ("lab", "project")
    spec = json.loads(model.spec.model_dump_json(by_alias=True, exclude_none=True))
    grids = [block["metadata"] for block in spec["blocks"] if block["type"] == "panel-grid"]
    assert len(grids) == len(SECTIONS)
    for grid, section in zip(grids, SECTIONS, strict=True):
        assert [each["name"] for each in grid["runSets"]] == list(section.arms)
        for run_set, names in zip(grid["runSets"], section.arms.values(), strict=True):
            (rule,) = run_set["filters"]["filters"]
            assert rule["key"] == {"section": "config", "name": "folder"}
            assert (rule["op"], rule["value"]) == ("IN", names)
            assert run_set["grouping"] == [{"section": "run", "name": "group"}]
        panels = grid["panelBankSectionConfig"]["panels"]
        assert [each["config"]["metrics"] for each in panels] == [
            [panel.metric] for panel in section.panels
        ]
        assert [each["config"]["yLogScale"] for each in panels] == [p.log for p in section.panels]
        layouts = [each["layout"] for each in panels]
        assert len({(each["x"], each["y"]) for each in layouts}) == len(layouts)
        assert all(each["x"] + each["w"] <= wandb_report.COLUMNS for each in layouts)
    titles = [
        block["children"][0]["text"] for block in spec["blocks"] if block["type"] == "heading"
    ]
    assert titles == [section.title for section in SECTIONS]


def test_wandb_sections_are_those_of_the_sweep():
    (section,) = wandb_report.sections(["fig6"], ["seed=0"])
    figure = sweeps.load_figure("fig6")
    assert list(section.arms) == list(figure.arms)
    assert section.panels == figure.panels
    jobs = sweeps.jobs(figure, ["seed=0"])
    assert section.arms == {job.label: [job.path.name] for job in jobs}


def test_wandb_without_a_key_is_one_line(monkeypatch):
    import wandb

    monkeypatch.setattr(wandb, "login", lambda **options: False)
    with pytest.raises(UserError, match=r"^wandb=lab/project: needs a W&B key"):
        wandb_report.save(wandb_report.build("lab", "project", SECTIONS))


# Command line ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fig3"], ["fig3", "KEY=VALUE"]),
        (["--figures=fig3,fig77"], ["--figures=fig77", "fig3"]),
        (["--runs=/nowhere"], ["--runs=/nowhere", "no such folder"]),
        (["--out=page.pdf"], ["--out=page.pdf", ".html"]),
        (["--out=/dev/null/page.html", "--figures=fig8"], ["/dev/null/page.html", "written"]),
        (["--wandb=project"], ["--wandb=project", "ENTITY/PROJECT"]),
        (["--wandb=a/b", "--out=x.html"], ["--out:", "--wandb"]),
        (["--wandb=a/b", "--figures=fig8"], ["--figures fig8", "fig3"]),
        (["--figures=fig3", "sed=0"], ["sed"]),
    ],
)
def test_bad_input_is_one_line(arguments, words, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        run_command("report", *arguments)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: ")
    for word in words:
        assert word in line


def test_command_writes_the_page(capsys, monkeypatch, tmp_path, found):
    asked = {}

    def gather(names, folders, overrides, every_run):
        asked.update(names=names, folders=folders, overrides=overrides, every_run=every_run)
        return found

    monkeypatch.setattr(report_command, "gather", gather)
    out = tmp_path / "new" / "page.html"
    run_command(
        "report", *[f"--out={out}", f"--runs={tmp_path}", "scale=paper", "--figures=fig3,fig8"]
    )
    assert asked == {
        "names": ["fig3", "fig8"],
        "folders": [tmp_path],
        "overrides": ["scale=paper"],
        "every_run": False,
    }
    assert out.read_text().startswith("<!doctype html>")
    printed = capsys.readouterr().out
    assert f"{out}: 2 figures, 12 runs" in printed
    assert "no run yet: fig99" in printed


def test_without_any_run_it_ends_at_once(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report_command, "gather", None)
    with pytest.raises(SystemExit) as stop:
        run_command("report")
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("error: nothing to show: there is no run yet; ")


def test_an_archive_is_refused(tmp_path, capsys):
    archive = tmp_path / "runs.csv.xz"
    archive.touch()
    with pytest.raises(SystemExit) as stop:
        run_command("report", f"--runs={archive}")
    assert stop.value.code == 2
    assert "must be a folder of runs" in capsys.readouterr().err
