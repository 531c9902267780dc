"""`python -m rec_experiments new`: what it writes works without changes.

1. From the wheel, in an empty folder: the package runs, sweeps, is drawn, tests itself, and is
   listed with ours.
2. An invalid name, or an existing folder: one line, exit code 2, and nothing is left behind.
3. No name of the template is left in the new package.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SMALL, refused

from rec_experiments.cli import new
from rec_experiments.cli.main import main
from rec_experiments.errors import UserError

ROOT = Path(__file__).parents[2]
WHEEL = ("-m", "pip", "wheel", str(ROOT), "--wheel-dir")
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")


class Outsider:
    """A folder with the wheel and packages installed, and an empty one to work in."""

    def __init__(self, folder: Path):
        self.site, self.cwd = folder / "site", folder / "empty"
        self.cwd.mkdir()
        self.python(*WHEEL, str(folder), *OFFLINE)
        [wheel] = folder.glob("*.whl")
        self.install(str(wheel))

    def install(self, what: str) -> None:
        self.python("-m", "pip", "install", "--target", str(self.site), what, *OFFLINE)

    def python(self, *arguments: str) -> str:
        """What `python ARGUMENTS`, which must succeed, prints."""
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.cwd, capture_output=True, text=True,
            check=False, timeout=600, env={**os.environ, "PYTHONPATH": str(self.site)},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ours(self, *arguments: str) -> str:
        return self.python("-m", "rec_experiments", *arguments)


@pytest.fixture(scope="module")
def outsider(tmp_path_factory) -> Outsider:
    return Outsider(tmp_path_factory.mktemp("outsider"))


@pytest.mark.long
def test_algorithm_from_the_wheel(outsider):
    where = outsider.python("-c", "import rec_experiments as r; print(r.__file__)")
    assert Path(where).is_relative_to(outsider.site)
    assert "pip install ./my_idea" in outsider.ours("new", "algorithm", "my_idea")
    outsider.install("./my_idea")

    assert "3 passed" in outsider.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "my_idea")
    groups = outsider.ours("--help")
    for group in ("algo", "sweep", "weight"):
        [line] = [each for each in groups.splitlines() if each.startswith(f"{group}: ")]
        assert "my_idea" in line.partition(": ")[2].split(", ")
    assert "my_idea" in outsider.ours("figures", "--help")
    assert "  my_idea " in outsider.ours("algorithms")
    assert "Σ M · min(ρ, 2) · ∇log π_θ" in outsider.ours("algorithms", "my_idea")

    said = outsider.ours(*SMALL, "algo=my_idea", "weight.cap=1.5")
    assert "algorithm   MyIdea (my_idea)" in said
    assert "min(ρ, 1.5)" in said


@pytest.mark.long
def test_its_sweep_and_its_figure(outsider):
    outsider.ours("new", "algorithm", "swept_idea")
    outsider.install("./swept_idea")
    sweep = ("swept_idea", *SMALL, "steps=2", "seed=0")
    swept = outsider.ours("-m", f"sweep={sweep[0]}", *sweep[1:])
    assert swept.startswith("9 runs, ")
    done, following = swept.splitlines()[-2:]
    assert done == "9 done, 0 failed"
    assert following.endswith(f"python -m rec_experiments figures {' '.join(sweep)}")
    assert "9 runs: 9 done" in outsider.ours("sweeps", "status", *sweep)
    assert "swept_idea.png" in outsider.ours("figures", *sweep)


@pytest.mark.long
def test_dataset_from_the_wheel(outsider):
    outsider.ours("new", "dataset", "sorting")
    outsider.install("./sorting")
    assert "4 passed" in outsider.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "sorting")
    gold = ("dataset=sorting", "dataset.train_problems=64", "dataset.eval_problems=16")
    assert outsider.ours("check_data", *gold) == "80 of 80 gold answers accepted\n"
    said = outsider.ours(*SMALL, "dataset=sorting")
    assert "data        4 digits to sort: 64 problems to train on, 8 to evaluate on" in said


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "the following arguments are required: KIND, NAME"),
        (("algorithm",), "the following arguments are required: NAME"),
        (("sampler", "mine"), "new sampler: no such kind; allowed: algorithm, dataset"),
        (("algorithm", "my-idea"), "my-idea: must be a name for a Python package"),
        (("algorithm", "MyIdea"), "MyIdea: must be a name for a Python package"),
        (("algorithm", "../idea"), "../idea: must be a name for a Python package"),
        (("algorithm", "3rd"), "3rd: must be a name for a Python package"),
        (("algorithm", "été"), "été: must be a name for a Python package"),
        (("algorithm", "lambda"), "lambda: is a word that Python uses itself"),
        (("algorithm", "json"), "json: is a word that Python uses itself"),
        (("algorithm", "_idea"), "_idea: is a word that Python uses itself"),
        (("dataset", "none"), "none: is a word that Python uses itself"),
        (("algorithm", "on"), "on: is a value on a command line, not a name"),
        (("dataset", "problem"), "problem: its class would be Problem, which it imports"),
        (("algorithm", "numpy"), "numpy: is a module that Python finds already"),
        (("algorithm", "grpo"), "algo=grpo exists already"),
        (("algorithm", "importance"), "weight=importance exists already"),
        (("algorithm", "fig3"), "sweep=fig3 exists already"),
        (("dataset", "gsm8k"), "dataset=gsm8k exists already"),
        (("algorithm", "there"), "there: exists already"),
        (("algorithm", "mine", "cap=3"), "unrecognized arguments: cap=3"),
        (("task", "mine"), "new task: is now called new dataset mine"),
    ],
    ids=" ".join,
)
def test_bad_input_leaves_nothing(words, reason, monkeypatch, capfd, tmp_path):
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    assert reason in refused(["new", *words], monkeypatch, capfd, main)
    assert [*tmp_path.rglob("*")] == [tmp_path / "there"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match=r"mine: cannot be written \(Permission denied\)"):
        new.create("dataset", "mine", tmp_path)


def test_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(new, "_rename", full)
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\)"):
        new.create("algorithm", "mine", tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("kind", new.KINDS)
def test_no_name_of_the_template_is_left(kind, tmp_path):
    folder = new.create(kind, "other_name", tmp_path)
    template, old = new.TEMPLATES / kind, new.KINDS[kind]
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    expected = [
        path.relative_to(template).as_posix().replace(old, "other_name")
        for path in template.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    assert sorted(files) == sorted(expected)
    for file in files:
        text = (folder / file).read_text()
        assert old not in text
        assert new.camel(old) not in text
