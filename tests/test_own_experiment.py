"""A researcher's first experiment, as docs/own_experiment.md has it, with a tiny model: rows,
comparison, picture; and the same from Python."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import command
from language_models import tiny_llama

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/own_experiment.md").read_text()
SHORT = ["steps=2", "eval_problems=4", "eval_every=2", "model.warm_start.steps=1", "group_size=2"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """The example's folder with its rows, and a model."""
    folder = tmp_path_factory.mktemp("own") / "own_experiment"
    shutil.copytree(ROOT / "examples/own_experiment", folder)
    subprocess.run([sys.executable, "make_rows.py"], cwd=folder, check=True)
    tiny_llama(folder / "FOLDER")
    return folder


def documented(first: str) -> list[str]:
    """The words of the page's command that begins with this."""
    lines = PAGE.replace("\\\n", " ").splitlines()
    [line] = [line for line in lines if line.startswith(f"python -m rec_experiments {first} ")]
    return shlex.split(line)[3:]


def test_the_check_shows_responses_and_what_to_try(place):
    assert command(*documented("check --answers"), cwd=place).stdout == (
        "answers     300 of 300 gold answers accepted\n"
    )
    done = command(*documented("check model=fine_tuned"), *SHORT, cwd=place)
    assert done.returncode == 1, done.stderr  # a random model solves nothing
    words = [line.split()[0] for line in done.stdout.splitlines()]
    assert {"answers", "question", "response", "verdict", "right", "variance", "rate"} < {*words}
    assert words[-1] == "try"


def test_the_comparison_ends_with_the_command_of_its_picture(place):
    done = command(*documented("-m algo=reinforce,grpo"), *SHORT, cwd=place)
    assert done.returncode == 0, done.stderr
    [drawing] = re.findall(r"python -m rec_experiments (figures .*)", done.stdout)
    drawn = command(*shlex.split(drawing, comments=True), cwd=place)
    assert drawn.returncode == 0, drawn.stderr
    [picture] = (place / "figures").glob("*.png")
    table = picture.with_suffix(".csv").read_text()
    assert {line.split(",")[0] for line in table.splitlines()[1:]} == {
        f"{method} · lr={rate}" for method in ("GRPO", "REINFORCE") for rate in ("1e-05", "3e-05")
    }


def test_the_comparison_from_python(place):
    done = subprocess.run(
        [sys.executable, "from_python.py", "FOLDER", *SHORT, "batch_size=2",
         "dataset.max_prompt_tokens=64", "dataset.max_response_tokens=4"],
        cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("eval/accuracy") == 2
