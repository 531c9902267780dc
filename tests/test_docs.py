"""The pages say what works: the site builds without a dead link, and every command in them runs.

A command that trains, or needs a cluster, is composed and checked here, and made in earnest by
`make test-docs`, which takes hours: DOCS_TESTS=1.
"""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from conftest import chosen

from rec_experiments import sweeps
from rec_experiments.cli import main
from rec_experiments.cli.main import COMMANDS
from rec_experiments.config import schema
from rec_experiments.config.experiment import Experiment

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
STARTS = ("python -m rec_experiments", "make ", "torchrun ")
IN_EARNEST = os.environ.get("DOCS_TESTS") == "1"
# What needs a cluster, a model from the hub, GPUs, or files of a reader's own.
ELSEWHERE = (
    "slurm", "wandb=", "FOLDER", "scale=paper", "make test", "torchrun", "qwen",
    "rec_experiments setting=paper",
)  # fmt: skip


# What a command may say in an empty folder of a machine without a cluster.
EMPTY = (
    "no finished run",
    "no run",
    "not a run folder",
    "no such folder",
    "has no train.jsonl",
    "WANDB_API_KEY",
    "launcher=slurm: ",
    "my_verifier.judge",
    "holds no model",
    "python -m pip install reasoning-gym",  # an extra
)


def commands() -> list[str]:
    """The commands of all pages, each once; `…` stands for what a reader fills in."""
    found = {}
    for page in PAGES:
        for language, block in FENCE.findall(page.read_text()):
            lines = block.replace("\\\n", " ").splitlines() if not language else []
            for line in lines:
                command = re.sub(r"\s+#.*", "", line.strip().removeprefix("$ "))
                if command.startswith(STARTS) and "…" not in command:
                    found[" ".join(command.split())] = None
    return list(found)


def marked(command: str):
    """All figures or presets are a hundred compositions, which other tests make as well."""
    slow = re.search(
        r"rec_experiments (claims .*(micro_batch_size|setting)=|report wandb=|algorithms out="
        r"|algorithms$|sweeps resubmit)",
        command,
    )
    return pytest.param(command, marks=[pytest.mark.long] if slow else [])


def test_there_are_commands():
    assert len(commands()) > 20
    assert {"make run", "make test"} <= set(commands())


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_site_builds_without_a_dead_link(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "index.html").read_text()
    assert 'href="runs.html"' in page  # and no folder, which a browser lists when it opens a file
    assert (tmp_path / "runs.html").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_links_to_are_there(page):
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    for link in links:
        assert link.startswith("http") or (page.parent / link).exists(), link


@pytest.mark.parametrize("command", map(marked, commands()))
def test_a_command_of_the_pages_is_one(command, tmp_path, monkeypatch, capfd):
    words = shlex.split(command)
    if words[0] == "make":
        check(["make", "--dry-run", *words[1:]], ROOT)
        return
    at = words.index("-m")  # torchrun has options of its own before
    module, arguments = words[at + 1], [w.replace("FOLDER", str(tmp_path)) for w in words[at + 2 :]]
    if module != "rec_experiments":
        check([sys.executable, "-m", module, *arguments], tmp_path)
    elif {*arguments[:1]} & COMMANDS.keys() and "--help" not in arguments:
        monkeypatch.chdir(tmp_path)
        code, said = exit_code(arguments), capfd.readouterr().err
        assert code == 0 or any(say in said for say in EMPTY), said
    elif "-m" in arguments:
        overrides = [each for each in arguments if each != "-m"]
        name = next(each for each in overrides if each.startswith("sweep=")).partition("=")[2]
        overrides.remove(f"sweep={name}")
        points, _ = sweeps.outline(sweeps.load_figure(name, overrides), overrides)
        assert points
    elif "--help" in arguments or "--cfg" in arguments:
        check([sys.executable, "-m", module, *arguments], tmp_path)
    else:
        schema.build(chosen(*arguments), Experiment)


def exit_code(arguments: list[str]) -> int:
    """Of a command that is called in this process, which saves its imports."""
    try:
        main.dispatch(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def own_data(folder: Path) -> None:
    """As the page has it: its row, its verifier."""
    blocks = dict(FENCE.findall((ROOT / "docs/data.md").read_text()))  # the last of each language
    (folder / "data").mkdir()
    for name in ("train", "test"):
        (folder / "data" / f"{name}.jsonl").write_text(blocks["json"])
    (folder / "my_verifier.py").write_text(blocks["python"])


def test_own_data_as_the_page_has_it(tmp_path):
    own_data(tmp_path)
    [line] = [each for each in commands() if "check_data dataset=own" in each]
    done = check([sys.executable, *shlex.split(line)[1:]], tmp_path)
    assert done.stdout == "2 of 2 gold answers accepted\n"


def check(command: list[str], folder: Path):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def workplace(tmp_path_factory) -> Path:
    """A reader's folder: what a command writes there, later ones read."""
    folder = tmp_path_factory.mktemp("reader")
    own_data(folder)
    return folder


@pytest.mark.skipif(not IN_EARNEST, reason="takes hours: make test-docs")
@pytest.mark.parametrize(
    "command", [each for each in commands() if not any(part in each for part in ELSEWHERE)]
)
def test_a_command_of_the_pages_in_earnest(command, workplace):
    binaries = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    folder = ROOT if command.startswith("make ") else workplace
    subprocess.run(
        command, shell=True, cwd=folder, env={**os.environ, "PATH": binaries}, check=True
    )


def test_one_version_stands_everywhere():
    """Of the package, of how to cite it, and the newest of the changes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert project["version"] == cited["version"] == newest[1]
