"""The pages say what works: the site builds without a dead link, and every command in them runs.

A command that trains, or needs a cluster, is composed and checked here, and made in earnest by
`make test-docs`, which takes hours: DOCS_TESTS=1.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import experiment

from rec_experiments import sweeps

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
STARTS = ("python -m rec_experiments", "make ", "torchrun ")
IN_EARNEST = os.environ.get("DOCS_TESTS") == "1"
ELSEWHERE = ("slurm", "--wandb", "FOLDER", "scale=paper", "make test")  # not here


# What a command may say in an empty folder of a machine without a cluster.
EMPTY = (
    "no run",
    "no such folder",
    "has no train.jsonl",
    "WANDB_API_KEY",
    "launcher=slurm: ",
    "holds no model",
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


def test_there_are_commands():
    assert len(commands()) > 20
    assert {"make run", "make test"} <= set(commands())


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_site_builds_without_a_dead_link(tmp_path):
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "index.html").is_file()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_links_to_are_there(page):
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    for link in links:
        assert link.startswith("http") or (page.parent / link).exists(), link


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_pages_is_one(command, tmp_path):
    words = shlex.split(command)
    if words[0] == "make":
        check(["make", "--dry-run", *words[1:]], ROOT)
        return
    at = words.index("-m")  # torchrun has options of its own before
    module, arguments = words[at + 1], [w.replace("FOLDER", str(tmp_path)) for w in words[at + 2 :]]
    if module != "rec_experiments":
        found = check([sys.executable, "-m", module, *arguments], tmp_path, allowed=(0, 2))
        assert found.returncode == 0 or any(say in found.stderr for say in EMPTY), found.stderr
    elif "-m" in arguments:
        overrides = [each for each in arguments if each != "-m"]
        name = next(each for each in overrides if each.startswith("sweep=")).partition("=")[2]
        overrides.remove(f"sweep={name}")
        assert sweeps.jobs(sweeps.load_figure(name, overrides), overrides)
    elif "--help" in arguments or "--cfg" in arguments:
        check([sys.executable, "-m", module, *arguments], tmp_path)
    else:
        experiment(*arguments)


def check(command: list[str], folder: Path, allowed: tuple[int, ...] = (0,)):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in allowed, done.stderr
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.skipif(not IN_EARNEST, reason="takes hours: make test-docs")
@pytest.mark.parametrize(
    "command", [each for each in commands() if not any(part in each for part in ELSEWHERE)]
)
def test_a_command_of_the_pages_in_earnest(command):
    binaries = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(command, shell=True, cwd=ROOT, env={**os.environ, "PATH": binaries}, check=True)
