"""Classes and packages outside of this one: examples/ has two, installed here as anybody would.

1. Their pieces, data set, preset and sweep are chosen, run and read back as ours.
2. A class needs no package: a dotted path on the command line chooses it.
3. What does not fit is one line. Nothing that only a run folder names is imported.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import SMALL, command, experiment, resolve

import rec_experiments
from rec_experiments.common.errors import UserError
from rec_experiments.config import plugins, schema
from rec_experiments.runs.prepare import prepare
from rec_experiments.runs.saved import experiment_of

ROOT = Path(__file__).parents[2]
OFFLINE = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
EXAMPLES = ("my_algorithm", "my_dataset")


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> dict[str, str]:
    """Of a process that has the examples installed beside this checkout."""
    site = str(tmp_path_factory.mktemp("o'brien's, site"))
    examples = [str(ROOT / "examples" / name) for name in EXAMPLES]
    install = [sys.executable, "-m", "pip", "install", "--target", site, *examples, *OFFLINE]
    subprocess.run(install, check=True, timeout=120)
    return {"PYTHONPATH": os.pathsep.join([site, str(ROOT)])}


def python(*arguments: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", *arguments], cwd=cwd, env={**os.environ, **environment},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_is_recorded_and_read_from_python(environment, tmp_path):
    """It uses all that the examples add, in processes of their own too."""
    data = ("dataset=my_dataset", "dataset.verifier_workers=1", "pipeline=overlap")
    done = command(*SMALL, "algo=my_algorithm", *data, cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert "Σ M · min(ρ, 2) · ∇log π_θ" in done.stdout
    [folder] = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "status.json").read_text())["state"] == "done"
    assert folder.name.startswith("myalgorithm_")
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["versions"]["my_algorithm"] == "0.1.0"
    script = f"""
import pathlib, yaml
from rec_experiments import sweeps
from rec_experiments.runs.saved import experiment_of
folder = pathlib.Path({str(folder)!r})
experiment = experiment_of(folder, ["steps=9"])
assert experiment.config() == {{**yaml.safe_load(open(folder / "config.yaml")), "steps": 9}}
print(type(experiment.weight).__module__, sweeps.names()[-1])
"""
    assert python("-c", script, cwd=tmp_path, **environment) == "my_algorithm my_algorithm\n"


def test_the_tests_of_the_examples_pass(environment, tmp_path):
    files = [str(ROOT / "examples" / name / "tests") for name in EXAMPLES]
    said = python(
        "-m", "pytest", "-p", "no:cacheprovider", "--import-mode=importlib", *files,
        cwd=tmp_path, **environment,
    )  # fmt: skip
    assert "7 passed" in said


@pytest.mark.long
def test_its_sweep_runs_and_its_figure_is_drawn(environment, tmp_path):
    sweep = ("my_algorithm", *SMALL, "steps=2", "seed=0", "sync=on_policy")
    swept = command("-m", f"sweep={sweep[0]}", *sweep[1:], cwd=tmp_path, **environment)
    assert "3 done, 0 failed\n" in swept.stdout, swept.stdout + swept.stderr
    arguments = ("-m", "rec_experiments", "figures", *sweep)
    assert "my_algorithm.png" in python(*arguments, cwd=tmp_path, **environment)


@pytest.mark.long
def test_a_submitted_job_runs_the_copy_whatever_becomes_of_the_package(environment, tmp_path):
    script = f"""
from rec_experiments import sweeps
from rec_experiments.sweeps.submission import prepare
overrides = [*{SMALL}, "hydra.sweeper.only=[MyAlgorithm]", "sync=on_policy", "seed=0"]
sweep = sweeps.load_figure("my_algorithm", overrides)
sent = prepare("my_algorithm", sweeps.jobs(sweep, overrides))
print(sent.folder, sent.code, sent.jobs[0].path)
"""
    folder, code, run = python("-c", script, cwd=tmp_path, **environment).split()
    later = tmp_path / "later"  # installed after the submission: not the job's
    write_package(later, "broken", "", "weight/my_algorithm.yaml")
    alone = {"PYTHONPATH": os.pathsep.join([code, str(later)])}
    python("-m", "rec_experiments.cli.run_job", folder, "0", cwd=tmp_path, **alone)
    assert json.loads((Path(run) / "status.json").read_text())["state"] == "done"
    provenance = json.loads((Path(run) / "provenance.json").read_text())
    assert (provenance["copy"], provenance["versions"]["my_algorithm"]) == (code, "0.1.0")


@pytest.mark.long
def test_the_wheel_has_all_that_a_run_needs(tmp_path):
    wheel = ("-m", "pip", "wheel", str(ROOT), "--wheel-dir", str(tmp_path), *OFFLINE)
    python(*wheel, cwd=tmp_path)
    [file] = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    python("-m", "pip", "install", "--target", str(site), str(file), *OFFLINE, cwd=tmp_path)
    said = python("-m", "rec_experiments", *SMALL, cwd=tmp_path, PYTHONPATH=str(site))
    assert "run folder  runs/" in said


# Without pip --------------------------------------------------------------------------------------

PIECE = """
from pydantic import PositiveFloat
from rec_experiments.common.pieces import Piece

class Mine(Piece):
    '''Twice nothing.'''
    cap: PositiveFloat = 2.0

    def __call__(self, log_ratio_BT, batch):
        {body}
"""
CAPPED = "return log_ratio_BT.exp().clamp(max=self.cap)"


def write_package(site: Path, name: str, code: str, conf: str = "", text: str = "") -> None:
    """Install a package of one file, and one of configuration, without pip."""
    about = site / f"{name}-1.0.dist-info"
    for folder in (site / name, about):
        folder.mkdir(parents=True)
    (site / name / "__init__.py").write_text(code)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{plugins.GROUP}]\n{name} = {name}\n")
    if conf:
        file = site / name / "conf" / conf
        file.parent.mkdir(parents=True)
        file.write_text(text)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Installs packages for this process, and forgets them afterwards."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name, *files):
        write_package(tmp_path, name, *files)
        monkeypatch.delitem(sys.modules, name, raising=False)
        plugins.packages.cache_clear()

    yield install
    plugins.packages.cache_clear()


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Writes a module `mine` that is on the path, but in no installed package."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(body):
        (tmp_path / "mine.py").write_text(PIECE.format(body=body))
        monkeypatch.delitem(sys.modules, "mine", raising=False)

    return write


def test_a_dotted_class_has_its_defaults_and_its_ranges(mine):
    mine(CAPPED)
    assert rec_experiments.algorithm("scalerl", "weight=mine.Mine").parts.weight.cap == 2  # not 5
    for line, told in {
        "weight.cap=0": r"^weight\.cap=0: must be greater than 0$",
        "weight.cup=1": r"^weight\.cup: no such key; did you mean weight\.cap\?",
    }.items():
        with pytest.raises(UserError, match=told):
            rec_experiments.algorithm("grpo", "weight=mine.Mine", line)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("_target_: mine.Mine\ncap: [2\n", r"^/.*weight/a6\.yaml, line 3: is not YAML \(expected"),
        ("_target_: mine.Mine\ncup: 2\n", r"^weight\.cup: no such key; did you mean weight\.cap"),
        ("_target_: mine.Mine\ncap: two\n", r"^weight\.cap=two: must be a number$"),
        ("cap: 2\n", r"^weight: its choice names no class; its file needs a line `_target_"),
        ("", r"^weight: its choice names no class"),
    ],
)
def test_a_choice_that_cannot_be_read_is_told(installed, mine, text, reason):
    mine(CAPPED)
    installed("a6", "", "weight/a6.yaml", text)
    with pytest.raises(UserError, match=reason) as told:
        rec_experiments.algorithm("reinforce", "weight=a6")
    assert "\n" not in str(told.value)


SPOILED = {
    "log_ratio_BT.exp()": "returned NoneType; must be a tensor of shape (6, 4), by responses and",
    "return log_ratio_BT.sum(1, keepdim=True)": "returned a tensor of shape (6, 1); must",
    "return log_ratio_BT.exp_()": "changes one of its input tensors; make a copy",
    "batch.mask_BT.zero_(); return log_ratio_BT": "changes one of its input tensors",
    "return (batch.logp_BT - batch.logps['behavior']).exp()": "returned a tensor with a gradient",
    "return batch.logps['reference']": "reads reference, which its `needs` does not declare",
}


@pytest.mark.parametrize("body", SPOILED)
def test_a_piece_that_breaks_its_protocol_is_refused(mine, body):
    """Before a run begins, whatever the other pieces declare."""
    mine(body)
    weight = schema.class_of("mine.Mine", "weight")()
    told = f"^{re.escape(f'Mine: {SPOILED[body]}')}"
    with pytest.raises(UserError, match=told):
        rec_experiments.algorithm("grpo_kl", "weight=mine.Mine")
    with pytest.raises(UserError, match=told):
        prepare(dataclasses.replace(experiment(*SMALL, "algo=grpo_kl"), weight=weight))


@pytest.mark.parametrize("file", ["sweep/fig3.yaml", "config.yaml"])
def test_a_file_that_would_be_hidden_is_told(installed, file):
    installed("a3", "", file)
    with pytest.raises(UserError, match=f"^package a3: rec_experiments has a conf/{file} already"):
        plugins.choices_by_group()


def test_a_package_that_is_not_there_is_told(installed, tmp_path):
    installed("a4", "")
    (tmp_path / "a4" / "__init__.py").unlink()
    (tmp_path / "a4").rmdir()
    with pytest.raises(UserError, match=r"^package a4: a4 must be a folder with an "):
        plugins.choices_by_group()


# Folders of strangers -----------------------------------------------------------------------------


def hostile(folder: Path, group: str, **values: str) -> Path:
    """A run folder whose configuration has been changed by hand."""
    config = resolve("dataset=own", "dataset.path=x", "dataset.verifier=mine.judge")
    config[group].update(values)
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


@pytest.mark.parametrize(
    ("group", "key", "name"),
    [
        ("weight", "_target_", "spy.Spy"),
        ("dataset", "verifier", "spy.judge"),
        ("dataset", "verifier", "rec_experiments.cli.main.run_command"),
    ],
)
def test_what_only_a_folder_names_is_not_imported(group, key, name, tmp_path, monkeypatch):
    (tmp_path / "spy.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    run = hostile(tmp_path / "run", group, **{key: name})
    with pytest.raises(UserError, match=f"={name}: only the run folder names it, so it is not"):
        experiment_of(run, ["dataset.verifier=mine.judge"] if group == "weight" else [])
    assert "spy" not in sys.modules


def test_the_command_line_may_name_it(mine, tmp_path):
    mine(CAPPED)
    run = hostile(tmp_path / "run", "weight", _target_="mine.Mine", cap=3.0)
    words = ["weight=mine.Mine", "dataset.verifier=mine.judge"]
    assert experiment_of(run, words).weight.cap == 3
    with pytest.raises(UserError, match=r"weight=mine\.Mine: only the run folder names it"):
        experiment_of(run, words[1:])


def test_plugins_in_the_current_folder_are_not_imported(tmp_path):
    (tmp_path / "hydra_plugins").mkdir()
    for file in ("spy.py", "__init__.py"):
        (tmp_path / "hydra_plugins" / file).write_text("raise SystemExit('imported')")
    done = command("--cfg", "job", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
