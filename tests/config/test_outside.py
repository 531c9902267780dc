"""Packages outside of this one: tests/outside is one, installed here as anybody would install it.

1. Its pieces, data set, sampler, optimizer, preset and sweep are chosen, run and read back as ours.
2. All of it works in a submission's copy of the code; tests/cli/test_new.py has the wheel.
3. A package that does not fit is one line that names it, and exit code 2.
"""

import dataclasses
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml
from conftest import SMALL, command, experiment

import rec_experiments
from rec_experiments.config import plugins, schema
from rec_experiments.errors import UserError
from rec_experiments.runs.prepare import prepare

HERE = Path(__file__).parents[1]
ALL_OF_IT = ("algo=truncated", "dataset=parity", "sampler=short", "optimizer=decaying")


def pip(*arguments: str) -> None:
    line = [sys.executable, "-m", "pip", *arguments, "--no-deps", "--no-build-isolation"]
    subprocess.run([*line, "--no-index", "--quiet"], check=True, timeout=120)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder with the package installed."""
    folder = tmp_path_factory.mktemp("site")
    pip("install", "--target", str(folder), str(HERE / "outside"))
    return folder


@pytest.fixture(scope="module")
def environment(site) -> dict[str, str]:
    """Of a process that has the package beside this checkout."""
    checkout = [str(HERE.parent), str(HERE.parent / "plugins")]
    return {"PYTHONPATH": os.pathsep.join([str(site), *checkout])}


def python(*arguments: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", *arguments], cwd=cwd, env={**os.environ, **environment},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def finished(environment, tmp_path_factory) -> Path:
    """The folder of a run that uses all that the package adds, in processes of their own too."""
    cwd = tmp_path_factory.mktemp("run")
    elsewhere = ("dataset.verifier_workers=1", "pipeline=overlap")
    done = command(*SMALL, *ALL_OF_IT, *elsewhere, cwd=cwd, **environment)
    assert done.returncode == 0, done.stderr
    [folder] = (cwd / "runs").iterdir()
    return folder


def test_a_run_ends_done_and_tells_of_the_package(finished):
    assert json.loads((finished / "status.json").read_text())["state"] == "done"
    assert finished.name.startswith("truncated_")
    config = yaml.safe_load((finished / "config.yaml").read_text())
    kinds = [config[slot]["kind"] for slot in ("weight", "dataset", "sampler", "optimizer")]
    assert kinds == ["truncated", "parity", "short", "decaying"]
    provenance = json.loads((finished / "provenance.json").read_text())
    assert provenance["versions"]["outside_example"] == "1.2.3"
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["train/response_length"] <= 2
    assert rows[-1]["train/learning_rate"] == pytest.approx(5e-4 / 3**0.5)


def test_its_run_and_its_preset_are_read_from_python(finished, environment, tmp_path):
    script = f"""
import yaml
import rec_experiments
from rec_experiments import sweeps
from rec_experiments.config import schema
from rec_experiments.config.experiment import Experiment
resolved = yaml.safe_load(open({str(finished / "config.yaml")!r}))
experiment = schema.build(schema.restore(resolved), Experiment)
assert experiment.config() == resolved, experiment
print(type(experiment.dataset).__module__)
print(rec_experiments.algorithm("truncated", "weight.cap=3").describe())
print(sweeps.names()[-1])
"""
    said = python("-c", script, cwd=tmp_path, **environment).splitlines()
    assert said[0] == "outside_example"
    assert "· min(ρ, 3) ·" in said[1]
    assert said[-1] == "parity"


def test_its_sweep_runs_and_its_figure_is_drawn(environment, tmp_path):
    swept = command("-m", "sweep=parity", *SMALL, cwd=tmp_path, **environment)
    assert "2 done, 0 failed\n" in swept.stdout, swept.stdout + swept.stderr
    arguments = ("-m", "rec_experiments", "figures", "parity", *SMALL)
    assert "parity.png" in python(*arguments, cwd=tmp_path, **environment)
    assert (tmp_path / "figures" / "parity.csv").is_file()


@pytest.mark.long
def test_a_submitted_job_runs_the_copy_whatever_becomes_of_the_package(environment, tmp_path):
    script = f"""
from rec_experiments import sweeps
overrides = [*{SMALL}, "hydra.sweeper.only=[Truncated]"]
sent = sweeps.prepare("parity", sweeps.jobs(sweeps.load_figure("parity", overrides), overrides))
print(sent.folder, sent.code, sent.jobs[0].path)
"""
    folder, code, run = python("-c", script, cwd=tmp_path, **environment).split()
    later = tmp_path / "later"  # installed after the submission: not the job's
    write_package(later, "broken", "raise RuntimeError")
    alone = {"PYTHONPATH": os.pathsep.join([code, str(later)])}
    python("-m", "rec_experiments.cli.run_job", folder, "0", cwd=tmp_path, **alone)
    assert json.loads((Path(run) / "status.json").read_text())["state"] == "done"
    provenance = json.loads((Path(run) / "provenance.json").read_text())
    assert (provenance["copy"], provenance["versions"]["outside_example"]) == (code, "1.2.3")


# Without pip: the README's package, and packages that do not fit ---------------------------------

PIECE = """
from dataclasses import dataclass
from rec_experiments.types import Piece

@dataclass(kw_only=True, slots=True)
class Mine(Piece):
    def __call__(self, log_ratio_BT, *_):
        return log_ratio_BT

    def describe(self, *_):
        return ""

"""
SCHEMA = "defaults: [/schema/weight/mine@_here_, _self_]\n"


def write_package(
    site: Path, name: str, code: str, conf: str | None = None, text: str = ""
) -> None:
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
    caches = (plugins.packages, schema.registry)

    def install(name, *files):
        write_package(tmp_path, name, *files)
        monkeypatch.delitem(sys.modules, name, raising=False)
        for cache in caches:
            cache.cache_clear()

    yield install
    for cache in caches:
        cache.cache_clear()


def test_our_own_classes_would_fit():
    ours = {slot: schema.SCHEMAS[slot] for slot in schema.PROTOCOLS}
    package = plugins.Package("ours", "1.0", types.ModuleType("ours"))
    package.module.SCHEMAS = ours
    assert plugins.merged({slot: {} for slot in ours}, schema.PROTOCOLS, [package]) == ours


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "import nothing_of_this_name",
            "a1 cannot be imported (ModuleNotFoundError: No module named 'nothing_of_this_name'); "
            "repair or uninstall it",
        ),
        (
            "from rec_experiments.types import Task",
            "imports rec_experiments.types.Task, which is now rec_experiments.types.Dataset",
        ),
        (
            "import rec_experiments.tasks.math_problems",
            "imports rec_experiments.tasks, which is now rec_experiments.datasets",
        ),
        (
            "from rec_experiments.records.tracking import Remembers",
            "imports rec_experiments.records, which is now rec_experiments.runs",
        ),
        ("import rec_experiments.slots", "imports rec_experiments.slots, which is now "),
        ("SCHEMAS = {'weight': 3}", "SCHEMAS must be slot: {name: class}"),
        (
            f"{PIECE}SCHEMAS = {{'wait': {{'mine': Mine}}}}",
            "wait: not a slot for classes",
        ),
        (
            f"{PIECE}SCHEMAS = {{'weight': {{'importance': Mine}}}}",
            "weight.importance: rec_experiments has that name already; choose another",
        ),
        (
            "SCHEMAS = {'weight': {'mine': int}}",
            "weight.mine: must be a dataclass derived from rec_experiments.types.Piece",
        ),
        (
            f"{PIECE}class Bare(Mine): ...\nSCHEMAS = {{'weight': {{'bare': Bare}}}}",
            "weight.bare: must be a dataclass derived from rec_experiments.types.Piece",
        ),
        (
            f"{PIECE}SCHEMAS = {{'dataset': {{'mine': Mine}}}}",
            "dataset.mine: has no load, which rec_experiments.types.Dataset requires",
        ),
        (
            f"{PIECE}@dataclass\nclass Fewer(Mine):\n    def __call__(self, log_ratio_BT): ...\n"
            "SCHEMAS = {'weight': {'fewer': Fewer}}",
            "weight.fewer: __call__ must accept the arguments of rec_experiments.algo.",
        ),
        (
            f"{PIECE}@dataclass\nclass More(Mine):\n    def describe(self, one, two): ...\n"
            "SCHEMAS = {'weight': {'more': More}}",
            "weight.more: describe must accept the arguments of rec_experiments.algo.",
        ),
        (
            f"{PIECE}@dataclass\nclass Odd(Mine):\n    field: object()\n"
            "SCHEMAS = {'weight': {'odd': Odd}}",
            "weight.odd: Unexpected type annotation",
        ),
    ],
)
def test_a_package_that_does_not_fit_is_told(installed, code, reason):
    installed("a1", code)
    with pytest.raises(UserError) as told:
        schema.register()
    assert f"package a1: {reason}" in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            f"{SCHEMA}cap: [2\n",
            r"^/.*weight/mine\.yaml, line 3: is not YAML \(expected ','",
        ),
        (
            f"{SCHEMA}cup: 2\n",
            r"^weight\.cup: no such key; did you mean weight\.cap\? --help lists all",
        ),
        (f"{SCHEMA}cap: two\n", r"^weight\.cap: must be a number$"),
        (SCHEMA, r"^weight\.cap: has no value$"),
        (
            SCHEMA.replace("mine@", "nine@"),
            r"^schema/weight/nine: no such class; allowed: none, .*",
        ),
        *(
            (text, r"^weight: its choice names no class; the file must begin with defaults: \[/sch")
            for text in ("cap: 2\n", "- cap\n", "")
        ),
    ],
)
def test_a_choice_that_cannot_be_read_is_told(installed, text, reason):
    capped = f"{PIECE}@dataclass(kw_only=True)\nclass Capped(Mine):\n    cap: float\n"
    installed("a6", f"{capped}SCHEMAS = {{'weight': {{'mine': Capped}}}}", "weight/mine.yaml", text)
    with pytest.raises(UserError, match=reason) as told:
        rec_experiments.algorithm("reinforce", "weight=mine")
    assert "\n" not in str(told.value)


SPOILED = {
    "log_ratio_BT.exp()": "returned NoneType; must be a tensor of shape (6, 4), by responses and",
    "return 1.0": "returned float; must be a tensor of shape (6, 4)",
    "return log_ratio_BT.sum(1, keepdim=True)": "returned a tensor of shape (6, 1); must",
    "return log_ratio_BT.exp_()": "changes one of its input tensors; make a copy",
    "batch.mask_BT.zero_(); return log_ratio_BT": "changes one of its input tensors",
    "return (batch.logp_BT - batch.logps['behavior']).exp()": "returned a tensor with a gradient",
    "return batch.logps['reference']": "reads reference, which its `needs` does not declare",
}


@pytest.mark.parametrize("body", SPOILED)
def test_a_piece_that_breaks_its_protocol_is_refused(installed, body):
    """Before a run begins, whatever the other pieces declare."""
    code = f"""{PIECE}
@dataclass(kw_only=True)
class Spoiling(Mine):
    def __call__(self, log_ratio_BT, batch):
        {body}

SCHEMAS = {{"weight": {{"mine": Spoiling}}}}"""
    installed("b7", code, "weight/mine.yaml", SCHEMA)
    weight = schema.registry()["weight"]["mine"]()
    told = f"^{re.escape(f'Spoiling: {SPOILED[body]}')}"
    with pytest.raises(UserError, match=told):
        rec_experiments.algorithm("grpo_kl", "weight=mine")
    with pytest.raises(UserError, match=told):
        prepare(dataclasses.replace(experiment(*SMALL, "algo=grpo_kl"), weight=weight))


def test_a_clip_from_outside_says_what_its_docstring_says(installed):
    code = f"""{PIECE}
import torch

@dataclass(kw_only=True)
class All(Piece):
    '''Keeps all.'''

    def __call__(self, log_ratio_BT, batch):
        return torch.ones_like(log_ratio_BT, dtype=torch.bool)

SCHEMAS = {{"clip": {{"mine": All}}}}"""
    installed("d7", code, "clip/mine.yaml", SCHEMA.replace("weight", "clip"))
    found = rec_experiments.algorithm("grpo", "clip=mine")
    assert found.describe().splitlines()[1] == "mask M: Keeps all"


@pytest.mark.parametrize(
    "method",
    [
        "describe = None",
        "@classmethod\n    def describe(cls): ...",
        "@property\n    def describe(self): ...",
    ],
)
def test_a_method_that_cannot_be_called_is_told(installed, method):
    added = f"@dataclass\nclass Added(Mine):\n    {method}\n"
    installed("c9", f"{PIECE}{added}SCHEMAS = {{'weight': {{'added': Added}}}}")
    with pytest.raises(UserError, match=r"^package c9: weight\.added: describe must accept"):
        schema.register()


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise SystemExit(0)", r"c8 cannot be imported \(SystemExit: 0\)"),
        ("SCHEMAS = {'weight': {1: int}}", "SCHEMAS must be slot: {name: class}"),
    ],
)
def test_a_package_that_says_no_names_is_told(installed, code, told):
    installed("c8", code)
    with pytest.raises(UserError, match=f"^package c8: {told}"):
        schema.register()


@pytest.mark.parametrize(
    "method",
    [
        "def describe(self, *anything): ...",
        "def describe(self, other_name, more=1, *, most=2): ...",
        "@staticmethod\n    def describe(ratio): ...",
        "@classmethod\n    def describe(cls, ratio): ...",
        "describe = functools.partialmethod(lambda self, words, ratio: words, 'words')",
    ],
)
def test_a_method_that_can_be_called_fits(installed, method):
    added = f"@dataclass\nclass Added(Mine):\n    {method}\n"
    installed("a9", f"import functools\n{PIECE}{added}SCHEMAS = {{'weight': {{'added': Added}}}}")
    schema.register()
    assert "added" in schema.registry()["weight"]


def test_what_a_package_prints_goes_to_stderr(installed, capsys):
    installed("e7", "print('hello')")
    schema.register()
    assert capsys.readouterr() == ("", "hello\n")


def test_two_packages_of_one_name_are_told(installed):
    for name in ("a2", "b2"):
        installed(name, f"{PIECE}SCHEMAS = {{'weight': {{'mine': Mine}}}}")
    with pytest.raises(UserError, match=r"^package b2: weight.mine: a2 has that name already"):
        schema.register()


@pytest.mark.parametrize("file", ["clip/ring.yaml", "sweep/fig3.yaml", "config.yaml"])
def test_a_file_that_would_be_hidden_is_told(installed, file):
    installed("a3", "", file)
    with pytest.raises(UserError, match=f"^package a3: rec_experiments has a conf/{file} already"):
        schema.register()


def test_files_of_two_packages_that_hide_each_other_are_told(installed):
    for name in ("a4", "b4"):
        installed(name, "", "algo/mine.yaml")
    with pytest.raises(UserError, match=r"^package b4: a4 has a conf/algo/mine.yaml already"):
        schema.register()


def test_a_file_that_is_no_text_is_named(installed, tmp_path):
    installed("a5", "", "weight/mine.yaml")
    file = next(tmp_path.rglob("mine.yaml"))
    file.write_bytes("cap: 2  # größer".encode("latin-1"))
    with pytest.raises(UserError, match=f"^{file}: must be text in UTF-8"):
        schema.register()


def test_a_run_whose_package_is_gone_is_told():
    with pytest.raises(UserError, match=r"weight.kind=gone: is not installed; allowed: no"):
        schema.restore({"weight": {"kind": "gone"}})


def test_help_ends_with_one_line_and_exit_code_2(tmp_path):
    write_package(tmp_path, "a5", "raise RuntimeError('no licence')")
    checkout = [str(HERE.parent), str(HERE.parent / "plugins")]
    path = os.pathsep.join([str(tmp_path), *checkout])
    done = command("--help", cwd=tmp_path, PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: package a5: a5 cannot be imported (RuntimeError: no licence); repair or uninstall "
        "it\n"
    )
