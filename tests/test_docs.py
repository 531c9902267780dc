"""What the pages say works: links lead somewhere, and commands are commands.

A command that trains is composed and built here, but not run; `make test-docs` (DOCS_TESTS=1) runs
those that need no cluster, hub or GPU, which takes hours.
"""

import functools
import importlib
import math
import os
import re
import shlex
import subprocess
import sys
import tomllib
from itertools import takewhile
from pathlib import Path

import pytest
import recording
import torch
import yaml
from conftest import composed

import rec_experiments
from rec_experiments.cli.main import COMMANDS, run_command
from rec_experiments.config import schema
from rec_experiments.config.experiment import Experiment

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
OURS = "python -m rec_experiments "
# What needs a cluster, a model from the hub, GPUs, or files of a reader's own.
ELSEWHERE = (
    "slurm", "wandb", "FOLDER", "scale=paper", "torchrun", "qwen", "setting=paper", "make test",
    "/shared", "my_module", "my_idea", "my_algorithm",
)  # fmt: skip


def commands() -> list[str]:
    """Return the commands of all pages, each once, without those that a reader must complete."""
    found = {}
    for page in PAGES:
        for language, block in FENCE.findall(page.read_text()):
            lines = [] if language else block.replace("\\\n", " ").splitlines()
            for line in lines:
                command = " ".join(re.sub(r"\s#.*", "", line.strip()).split())
                if command.startswith((OURS, "make ", "torchrun ")) and "…" not in command:
                    found[command] = None
    return list(found)


def training_runs() -> list[list[str]]:
    """Return the overrides of the commands that train one run, each composition once."""
    found = {}
    for command in commands():
        words = shlex.split(command.partition(" -m rec_experiments ")[2])
        overrides = [*takewhile(lambda word: word != "#", words)]
        if overrides and all("=" in word and word[0] != "-" for word in overrides):
            found[tuple(overrides)] = None
        elif overrides[:1] == ["-m"] and "sweep=" not in command:  # the first job of a multirun
            first = [re.sub(r"=([^,\[]+),.*", r"=\1", word) for word in overrides[1:]]
            found[tuple(first)] = None
    return [list(each) for each in found if "weight=my_module.TruncatedWeight" not in each]


def other_commands() -> list[list[str]]:
    """Return the words of the commands that are not runs, nor a question for help."""
    lines = [shlex.split(command.removeprefix(OURS)) for command in commands()]
    return [words for words in lines if words[0] in COMMANDS]


def test_the_site_builds_without_a_dead_link(tmp_path):
    pytest.importorskip("mkdocs", reason="the site is built with the extra `docs`")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'href="runs.html"' in (tmp_path / "index.html").read_text()  # works without a server


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_outside_the_site_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#\s]+)", (ROOT / page).read_text()):
        assert link.startswith("http") or (ROOT / link).exists(), link


def test_every_picture_is_shown():
    shown = "".join(page.read_text() for page in PAGES)
    assert [p.name for p in (ROOT / "docs/figures").iterdir() if p.name not in shown] == []


@pytest.mark.long
def test_the_recording_is_what_make_run_prints():
    """Word for word; measured numbers within what another processor's rounding changes."""
    number = re.compile(r"\d\.\d+|[▁▂▃▄▅▆▇█]+")
    kept, now = (recording.words(svg) for svg in (recording.FILE.read_text(), recording.recorded()))
    assert number.sub("", now) == number.sub("", kept)
    before, after = ([*map(float, re.findall(r"\d+\.\d+", each))] for each in (kept, now))
    assert after == pytest.approx(before, rel=0.1, abs=0.1)


@pytest.mark.parametrize("overrides", training_runs(), ids=" ".join)
def test_a_documented_run_composes(overrides):
    schema.build(composed(*overrides), Experiment)


@pytest.mark.parametrize("words", other_commands(), ids=" ".join)
def test_a_documented_command_takes_these_arguments(words, monkeypatch):
    """It is parsed in full, without being carried out."""
    module = importlib.import_module(f"rec_experiments.cli.{words[0].replace('-', '_')}")
    called = []

    @functools.wraps(module.main)
    def main(*given, **options):
        called.append(words)

    monkeypatch.setattr(module, "main", main)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(Path, "is_dir", lambda path: True)  # a reader's own folders
    run_command(*words)
    assert called == [words]


def test_the_class_of_the_readme_is_a_piece(tmp_path, monkeypatch):
    blocks = FENCE.findall((ROOT / "README.md").read_text())
    [module] = [block for _, block in blocks if "class TruncatedWeight" in block]
    (tmp_path / "my_module.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    choices = ("weight=my_module.TruncatedWeight", "weight.cap=2")
    out = rec_experiments.algorithm("reinforce", *choices)(
        logp=torch.tensor([[-1.0], [-1.0]]),
        behavior_logp=torch.tensor([[-1.5], [-3.0]]),  # ρ is exp(0.5) and exp(2)
        rewards=torch.tensor([1.0, 0.0]),
        groups=torch.tensor([0, 0]),
        mask=torch.ones(2, 1),
    )
    assert float(out.loss) == pytest.approx((math.exp(0.5) - 2) * 0.5 / 2)


def test_documented_targets_are_there():
    targets = {command.split()[1] for command in commands() if command.startswith("make ")}
    assert {"run", "test"} <= targets
    done = subprocess.run(
        ["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_quotes_the_file():
    quoted = FENCE.findall((ROOT / "README.md").read_text())
    [block] = [block for _, block in quoted if "def rec_one_side" in block]
    file = (ROOT / "notebooks/one_run.py").read_text()
    assert [line for line in block.splitlines() if line.strip() not in file] == []


def test_one_version_stands_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    assert (ROOT / "CHANGELOG.md").read_text().startswith(f"# Changelog\n\n## {version}\n")


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A reader's folder with the rows and the verifier of docs/own_experiment.md."""
    folder = tmp_path_factory.mktemp("reader")
    blocks = FENCE.findall((ROOT / "docs/own_experiment.md").read_text())
    [row] = [block for language, block in blocks if language == "json"]
    [verifier] = [block for _, block in blocks if "def judge" in block]
    assert verifier in (ROOT / "examples/own_experiment/my_verifier.py").read_text()
    (folder / "data").mkdir()
    for name in ("train", "test"):
        (folder / "data" / f"{name}.jsonl").write_text(row)
    (folder / "my_verifier.py").write_text(verifier)
    return folder


def test_own_data_as_the_page_has_it(workplace):
    [line] = [each for each in commands() if "check --answers dataset=own" in each]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *shlex.split(line)[1:]],
        cwd=workplace, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "answers     2 of 2 gold answers accepted\n"), (
        done.stderr
    )


@pytest.mark.skipif(os.environ.get("DOCS_TESTS") != "1", reason="takes hours: make test-docs")
@pytest.mark.parametrize("command", [c for c in commands() if not any(p in c for p in ELSEWHERE)])
def test_a_command_of_the_pages_in_earnest(command, workplace):
    binaries = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    folder = ROOT if command.startswith("make ") or " docs/" in command else workplace
    environment = {**os.environ, "PATH": binaries}
    subprocess.run(command, shell=True, cwd=folder, env=environment, check=True)
