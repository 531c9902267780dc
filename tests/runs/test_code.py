"""What these tests lock: a run is told from one that other code made.

1. What computes the same by its look keeps the digest; a changed number, operator or default and a
   new module do not; modules that no number depends on do not count.
2. Pairs declared equivalent count as the same code, link by link.
3. Every start stays in provenance.json, and those that rows are left of are the makers.
4. A finished run of other code is named, and made anew with remake=true, whole and alone; one of
   this code is left alone. A resumed one says that other code began it.
5. Sweeps, figures, claims and the report name the runs that other code made.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SMALL, experiment, timeless
from conftest import run as train_until

from rec_experiments import sweeps
from rec_experiments.cli.sweeps import table
from rec_experiments.errors import UserError
from rec_experiments.runs import code, provenance
from rec_experiments.runs.run import run
from rec_experiments.runs.run_folder import RunFolder

SOURCE = '''
"""A module."""
RATE = 0.5

class Piece:
    """A piece."""
    low: float = 0.2

    def ratio(self, x: float, *, cap=2.0) -> float:
        """A ratio."""
        if x > cap:  # cut
            x = cap
        return self.low * x + RATE

def name(width, x):
    return f"{x!r:>{width}} {x:.3f}"
'''
COSMETIC = {
    "a comment": ("# cut", "# cut it off"),
    "no comment": ("  # cut", ""),
    "a docstring": ('"""A ratio."""', '"""What is\n        returned."""'),
    "no docstring": ('    """A piece."""\n', ""),
    "layout": ("self.low * x + RATE", "(\n            self.low * x\n            + RATE\n        )"),
    "quotes": ('f"{x!r:>{width}} {x:.3f}"', "f'{x!r:>{width}} {x:.3f}'"),
    "blank lines": ("RATE = 0.5\n", "\n\nRATE = 0.5\n\n\n"),
}
CHANGED = {
    "a constant": ("RATE = 0.5", "RATE = 0.25"),
    "a type of a constant": ("RATE = 0.5", "RATE = '0.5'"),
    "an operator": ("x > cap", "x >= cap"),
    "a default": ("cap=2.0", "cap=3.0"),
    "a field's default": ("= 0.2", "= 0.3"),
    "a field's type": ("low: float", "low: int"),
    "an order": ("self.low * x + RATE", "self.low * (x + RATE)"),
    "a format": (":.3f", ":.4f"),
    "a statement": ("            x = cap\n", "            x = cap\n            x += 0\n"),
}
OTHER = "0" * code.DIGITS


@pytest.mark.parametrize("edit", COSMETIC.values(), ids=COSMETIC)
def test_what_only_looks_otherwise_is_the_same_code(edit):
    assert edit[0] in SOURCE
    assert code.normal_form(SOURCE.replace(*edit)) == code.normal_form(SOURCE)


@pytest.mark.parametrize("edit", CHANGED.values(), ids=CHANGED)
def test_what_computes_otherwise_is_other_code(edit):
    assert edit[0] in SOURCE
    assert code.normal_form(SOURCE.replace(*edit)) != code.normal_form(SOURCE)


def test_the_normal_form_is_that_of_every_python():
    """Written down, so that a run of the tests with another Python compares."""
    assert code.normal_form(
        "def f(x: int = 1):\n    'doc'\n    return f'{x:{w}}' f'{1}é', None"
    ) == (
        "Module(body=[FunctionDef(name='f',args=arguments(args=[arg(arg='x',annotation="
        "Name(id='int',ctx=Load()))],defaults=[Constant(value=1)]),body=[Return(value=Tuple(elts="
        "[JoinedStr(values=[FormattedValue(value=Name(id='x',ctx=Load()),conversion=-1,format_spec="
        "JoinedStr(values=[FormattedValue(value=Name(id='w',ctx=Load()),conversion=-1)])),"
        "FormattedValue(value=Constant(value=1),conversion=-1),Constant(value='\\xe9')]),"
        "Constant()],ctx=Load()))])])"
    )


def digests_of(copy: Path) -> list[str]:
    """What the command prints for a copy of the package; it needs no torch."""
    (copy / "torch.py").write_text("raise ImportError")
    return subprocess.run(
        [sys.executable, "-m", "rec_experiments.runs.code"],
        cwd=copy, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip


def test_every_module_counts_but_those_that_compute_nothing(tmp_path):
    package = tmp_path / "rec_experiments"
    shutil.copytree(code.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    first = digests_of(tmp_path)
    assert first[0] == f"{code.digest(code.modules())}  the code"
    for name in ("display.py", "figures/render.py", "records/tracking.py"):
        (package / name).write_text("RATE = 0.5\n")
    (package / "results" / "new").mkdir(parents=True)
    (package / "results" / "new" / "table.py").write_text("RATE = 0.5\n")
    assert digests_of(tmp_path) == first
    (package / "algo" / "new.py").write_text("RATE = 0.5\n")
    second = digests_of(tmp_path)
    [added] = set(second[1:]) - set(first[1:])
    assert added.endswith("  rec_experiments.algo.new")
    rng = package / "rng.py"
    rng.write_text(rng.read_text().replace("seed, stream", "stream, seed"))
    third = digests_of(tmp_path)
    assert len({found[0] for found in (first, second, third)}) == 3
    [changed] = set(third[1:]) - set(second[1:])
    assert changed.endswith("  rec_experiments.rng")


def test_names_that_are_left_out_exist():
    """But for those of the results, which have a name of their own before they have a module."""
    for names in code.LEFT_OUT:
        for name in set(names.split(", ")) - {"results"}:
            place = code.PACKAGE.joinpath(*name.split("."))
            assert place.is_dir() or place.with_suffix(".py").is_file(), name


def test_packages_from_elsewhere_count_when_they_are_named(tmp_path):
    (tmp_path / "extra").mkdir()
    (tmp_path / "extra" / "__init__.py").write_text("")
    (tmp_path / "extra" / "figures.py").write_text("A = 1")
    (tmp_path / "one.py").write_text("A = 1")
    found = code.modules((tmp_path / "extra", tmp_path / "one.py"))
    assert found.keys() - code.modules().keys() == {"extra", "extra.figures", "one"}


def test_packages_that_compute_a_run_are_those_of_its_pieces(monkeypatch):
    monkeypatch.setattr(code, "version", lambda name: f"{len(name)}.1+cpu")
    monkeypatch.setattr(code, "release", code.release.__wrapped__)  # asks anew each time
    assert code.current({"sampler": {"kind": "native"}, "steps": 3})["versions"] == {
        "numpy": "5.1", "torch": "5.1", "transformers": "12.1",
    }  # fmt: skip
    assert "vllm" in code.current({"sampler": {"kind": "vllm"}})["versions"]


def test_equivalence_goes_either_way_and_from_link_to_link():
    pairs = [("c", "b"), ("b", "a"), ("y", "x")]
    assert code.equivalents("b", pairs) == {"a", "b", "c"}
    assert code.equivalents("z", pairs) == {"z"}


def test_the_list_of_equivalent_code_is_whole(tmp_path):
    code.declared()
    file = tmp_path / "list.yaml"
    entry = {"code": "a", "same_as": "b", "why": "a name", "evidence": "two runs"}
    file.write_text(json.dumps([entry]))
    assert code.declared(file) == (("a", "b"),)
    for broken in ({**entry, "evidence": ""}, {"code": "a"}, "a"):
        other = tmp_path / f"{len(str(broken))}.yaml"
        other.write_text(json.dumps([broken]))
        with pytest.raises(UserError, match="must have code, same_as, why, evidence"):
            code.declared(other)


# Starts and makers --------------------------------------------------------------------------------


def start(digest=None, from_step=0, commit="abcdef0123", **details) -> dict:
    here = code.current({})
    found = {**here, "digest": digest or here["digest"], "modules": {**here["modules"], **details}}
    return {"commit": commit, "diff": "", "code": found, "from_step": from_step}


def test_makers_are_the_starts_that_rows_are_left_of():
    other = start(OTHER, 0, **{"rec_experiments.rng": OTHER})
    words = "(commit abcdef0, 1 module differs)"
    assert code.made_by({"starts": [other]}) == f"other code {words}"
    assert code.made_by({"starts": [other, start(from_step=20)]}) == f"other code in part {words}"
    assert code.made_by({"starts": [other, start(from_step=0)]}) == ""
    assert code.made_by({"starts": [start(), {**other, "from_step": 9}, start(from_step=9)]}) == ""
    assert code.made_by({}) == ""


def test_a_provenance_of_before_is_one_start_of_unknown_code():
    origin = {"commit": "abcdef0123", "diff": "+ 1", "versions": {}}
    assert code.made_by(origin) == "unknown code (commit abcdef0 with changes)"
    after = provenance.after(origin, {"commit": "new", "code": code.current({})}, 20)
    assert [each["commit"] for each in after["starts"]] == ["abcdef0123", "new"]
    assert after["commit"] == "new"


@pytest.mark.parametrize(
    "starts",
    [None, "x", {}, [1], [{"from_step": "0"}], [{"from_step": 0, "commit": 7}],
     [{"from_step": 0, "code": {"digest": "a", "modules": [], "versions": {}}}]],
    ids=repr,
)  # fmt: skip
def test_a_provenance_of_something_else_is_told_with_the_folder(starts, tmp_path):
    (tmp_path / "provenance.json").write_text(json.dumps({"starts": starts}))
    with pytest.raises(UserError, match=r"provenance\.json cannot be read .* remove it"):
        RunFolder(tmp_path).made_by()


def test_a_package_that_none_can_be_called_is_not_compared():
    made = start(OTHER)
    made["code"]["versions"] = {"": "1", "a\0b": "1"}
    assert code.different_packages(made) == []


def test_another_release_of_a_package_is_other_code():
    made = start()
    made["code"]["versions"] = {**made["code"]["versions"], "torch": "1.0.0", "not-here": "2.0"}
    assert code.made_by({"starts": [made]}) == "other code (commit abcdef0, torch 1.0.0 differs)"


def test_declared_code_counts_as_this_code(monkeypatch):
    monkeypatch.setattr(code, "declared", lambda: ((code.current({})["digest"], OTHER),))
    assert code.made_by({"starts": [start(OTHER)]}) == ""


# Runs ---------------------------------------------------------------------------------------------


def by_other_code(folder: Path) -> None:
    """Let what a run says of its code be of another."""
    file = folder / "provenance.json"
    origin = json.loads(file.read_text())
    for each in (origin, *origin["starts"]):
        each["commit"], each["diff"] = "c0ffee123", ""
        each["code"]["digest"] = each["code"]["modules"]["rec_experiments.rng"] = OTHER
    file.write_text(json.dumps(origin))


MADE_BY = "other code (commit c0ffee1, 1 module differs)"


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return run(experiment(*SMALL, f"run_dir={tmp_path_factory.mktemp('finished') / 'run'}"))


@pytest.fixture
def copy(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_every_start_is_recorded(finished):
    origin = RunFolder(finished).provenance()
    [only] = origin["starts"]
    assert only["code"] == origin["code"] == code.current({})
    assert only["from_step"] == 0
    assert only.keys() >= {"time", "command", "commit", "diff", "device", "cpu_capability"}


def test_a_finished_run_of_other_code_is_named_and_kept(copy, capsys):
    by_other_code(copy)
    before = contents(copy)
    run(experiment(*SMALL, f"run_dir={copy}"))
    said = capsys.readouterr().out
    assert f"finished before, by {MADE_BY}: {copy}; nothing to do; remake=true" in said
    assert contents(copy) == before


def test_a_finished_run_of_this_code_is_left_alone(copy, capsys):
    before = contents(copy)
    run(experiment(*SMALL, f"run_dir={copy}", "remake=true"))
    assert f"finished before: {copy}; nothing to do\n" in capsys.readouterr().out
    assert contents(copy) == before


@pytest.mark.parametrize("state", ["done", "interrupted"])
def test_remake_makes_a_run_of_other_code_anew(copy, finished, state, capsys):
    by_other_code(copy)
    RunFolder(copy).set_status(state, reason="")
    with open(copy / "metrics.jsonl", "a") as rows:
        rows.write('{"step": 99, "train/reward": 1}\n')
    (copy / "wandb_id").write_text("old")
    run(experiment(*SMALL, f"run_dir={copy}", "remake=true"))
    assert f"made before by {MADE_BY}, and now anew" in capsys.readouterr().out
    folder = RunFolder(copy)
    assert (folder.status()["state"], folder.made_by()) == ("done", "")
    assert [*map(timeless, folder.metrics())] == [*map(timeless, RunFolder(finished).metrics())]
    assert not (copy / "wandb_id").exists()
    assert folder.provenance()["starts"][0]["commit"] == "c0ffee123"
    again = contents(copy)
    run(experiment(*SMALL, f"run_dir={copy}", "remake=true"))  # as a requeued job does
    assert contents(copy) == again


def test_a_remake_that_is_cut_off_is_never_half_old(copy, monkeypatch):
    """Killed at any file that it removes: the run is not done, and what is left has its maker."""
    by_other_code(copy)
    removed = []

    def die(path, *arguments, **options):
        removed.append(path)
        raise KeyboardInterrupt

    for owner, name in ((shutil, "rmtree"), (Path, "unlink")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, die)
            with pytest.raises(KeyboardInterrupt):
                train_until(copy, *SMALL, remake=True)
        assert RunFolder(copy).status()["state"] == "running"
        assert RunFolder(copy).made_by() == MADE_BY
    assert removed
    run(experiment(*SMALL, f"run_dir={copy}", "remake=true"))
    assert RunFolder(copy).made_by() == ""


def test_resuming_under_other_code_says_so_and_keeps_both_starts(tmp_path, capsys):
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train_until(path, *SMALL, until=2)
    origin = {"commit": "c0ffee123", "diff": "", "code": code.current({}), "from_step": 0}
    (path / "provenance.json").write_text(json.dumps({**origin, "starts": [origin]}))
    by_other_code(path)
    run(experiment(*SMALL, f"run_dir={path}"))
    in_part = MADE_BY.replace("code", "code in part")
    assert f"begun by {in_part}; this code goes on with it" in capsys.readouterr().out
    folder = RunFolder(path)
    first, second = folder.provenance()["starts"]
    assert (first["commit"], first["code"]["digest"], first["from_step"]) == ("c0ffee123", OTHER, 0)
    assert (second["code"], second["from_step"]) == (code.current({}), 1)
    assert (folder.status()["state"], folder.made_by()) == ("done", in_part)


# Who says it --------------------------------------------------------------------------------------


@pytest.fixture
def jobs(copy) -> list[sweeps.Job]:
    """Two finished runs, one of them by other code."""
    other = Path(shutil.copytree(copy, copy.with_name("other")))
    by_other_code(other)
    config = {"steps": 3, "output_dir": str(copy.parent), "remake": False}
    return [sweeps.Job("GRPO", "offline", [], config, path) for path in (copy, other)]


def test_a_sweep_runs_again_what_other_code_made_if_it_is_asked_to(jobs):
    states = sweeps.survey(jobs)
    assert [sweeps.finished(job) for job in jobs] == [True, True]
    *_, this, other, counts = table(jobs, states)
    assert this.endswith("  run")
    assert other.endswith(f"  other  by {MADE_BY}")
    assert counts == "2 runs: 2 done; 1 of those done by other code"
    for job in jobs:
        job.config["remake"] = True
    assert [sweeps.finished(job) for job in jobs] == [True, False]
    assert [state.name for state in sweeps.survey(jobs).values()] == ["done", "outdated"]


def test_the_command_names_what_differs(jobs, capsys):
    for job in jobs:
        code.main([str(job.path)])
    assert capsys.readouterr().out.splitlines() == [
        "made by this code", f"made by {MADE_BY}", "  rec_experiments.rng",
    ]  # fmt: skip
    with pytest.raises(UserError, match="nowhere: must be one run folder"):
        code.main(["nowhere"])
