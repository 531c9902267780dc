"""Provenance: which release made a run, where its rounding changed, and that commit and changes are
those of this package's own checkout.
"""

import json
import subprocess
from pathlib import Path

import pytest
from conftest import SMALL, experiment

from rec_experiments import RELEASE
from rec_experiments.runs import provenance
from rec_experiments.runs.run import run
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.samplers import shared


def start(capability: str | None, from_step: int = 0, **more: object) -> dict:
    return {"cpu_capability": capability, "from_step": from_step, **more}


@pytest.mark.parametrize(
    ("starts", "changed"),
    [
        ([start("AVX512"), start("AVX512", 20)], False),
        ([start("AVX512"), start("AVX2", 20)], True),
        ([start("AVX512"), start("AVX2", 0)], False),  # from the beginning
        ([start(None), start("AVX2", 20)], False),  # the first one is unknown
        ([start("AVX2"), start("AVX512", 20), start("AVX2", 30)], True),
    ],
)
def test_changed_instructions(starts, changed):
    lines = provenance.remarks({"starts": starts})
    assert len(lines) == changed
    if changed:
        assert f"begun with CPU instructions {starts[-2]['cpu_capability']} (" in lines[0]
        assert "ATEN_CPU_CAPABILITY" in lines[0]


def test_collected_values(monkeypatch):
    found = provenance.after({}, provenance.collect(1, {}), 0)
    assert found["starts"][0]["cpu_capability"]
    assert (found["release"], found["starts"][0]["release"]) == (RELEASE, RELEASE)
    assert found["shared_draws"] is False
    assert provenance.remarks(found) == []
    monkeypatch.setenv(shared.FOLDER, "/somewhere")
    assert provenance.collect(1, {})["shared_draws"] is True


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ({}, ""),
        ({"command": ["run"]}, "an earlier release"),  # of old, without starts
        (
            {"starts": [{"from_step": 0}, {"from_step": 3, "release": 11},
                        {"from_step": 5, "release": RELEASE}]},
            "an earlier release and release 11",
        ),
        # The second start repeated all steps of the first.
        ({"starts": [{"from_step": 5}, {"from_step": 5, "release": RELEASE}]}, ""),
    ],
)  # fmt: skip
def test_releases_of_a_run(origin, words):
    assert provenance.other_releases(origin) == words


def test_a_run_of_another_release(tmp_path, capsys):
    """It is continued and named, or repeated with remake=true."""
    words = (*SMALL, f"run_dir={tmp_path / 'run'}")
    folder = RunFolder(run(experiment(*words)))
    origin = folder.provenance()
    origin["starts"][0]["release"] = 11
    (folder.path / "provenance.json").write_text(json.dumps(origin))
    capsys.readouterr()
    run(experiment(*words))
    assert "(by release 11; remake=true repeats it)" in capsys.readouterr().out
    folder.set_status("interrupted")
    run(experiment(*words))
    assert f"begun by release 11, continued by release {RELEASE}" in capsys.readouterr().out
    run(experiment(*words, "remake=true"))
    assert f"repeats a run of release 11 with release {RELEASE}" in capsys.readouterr().out
    assert folder.other_releases() == ""
    run(experiment(*words, "remake=true"))
    assert "already finished" in capsys.readouterr().out


# The checkout ------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    name = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(
        ["git", *name, *arguments], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout


def repository(folder: Path, *names: str) -> Path:
    """A repository with one commit of these files."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("before\n")
    git(folder, "init", "-q")
    git(folder, "add", "-f", *names)
    git(folder, "commit", "-qm", "first")
    return folder


@pytest.fixture
def own(tmp_path, monkeypatch) -> Path:
    """A checkout of this package."""
    parent = repository(tmp_path, provenance.TRACKED, "conf/a.yaml")
    monkeypatch.setattr(provenance, "PARENT", parent)
    return tmp_path


def test_an_own_checkout_has_its_commit_and_its_changes(own):
    (own / "conf" / "a.yaml").write_text("after\n")
    found = provenance.source()
    assert found["commit"] == git(own, "rev-parse", "HEAD").strip()
    assert "+after" in found["diff"]
    assert provenance.is_dirty()


@pytest.mark.parametrize("tracked", [False, True])
def test_the_repository_of_a_stranger_is_none_of_ours(tracked, tmp_path, monkeypatch):
    """Installed within it: its folder of packages ignored, or even tracked."""
    site = tmp_path / ".venv" / "site-packages"
    package = f".venv/site-packages/{provenance.TRACKED}"
    (site / provenance.TRACKED).parent.mkdir(parents=True)
    (site / provenance.TRACKED).write_text("")
    repository(tmp_path, "theirs.py", *([package] if tracked else []))
    (tmp_path / "theirs.py").write_text("after\n")
    monkeypatch.setattr(provenance, "PARENT", site)
    assert provenance.source() == {"commit": None, "diff": None}
    assert not provenance.is_dirty()
    assert provenance.ignored() == set()


def test_a_repository_without_our_files_is_none_of_ours(tmp_path, monkeypatch):
    """PARENT is its top, but it does not hold this package."""
    monkeypatch.setattr(provenance, "PARENT", repository(tmp_path, "theirs.py"))
    assert provenance.source() == {"commit": None, "diff": None}


def test_variables_of_git_point_to_no_other_repository(own, tmp_path_factory, monkeypatch):
    theirs = repository(tmp_path_factory.mktemp("theirs"), "theirs.py")
    monkeypatch.setenv("GIT_DIR", str(theirs / ".git"))
    found = provenance.source()
    monkeypatch.delenv("GIT_DIR")
    assert found["commit"] == git(own, "rev-parse", "HEAD").strip()


def test_changes_that_are_no_text_are_read(own):
    (own / "conf" / "a.yaml").write_bytes(b"\xff\xfe after\n")
    assert "after" in provenance.source()["diff"]


def test_ignored_files_and_folders_are_known(own):
    (own / ".gitignore").write_text("local.yaml\nruns/\n")
    (own / "conf" / "local.yaml").write_text("")
    (own / "runs" / "a").mkdir(parents=True)
    (own / "runs" / "a" / "b").write_text("")
    assert provenance.ignored() == {own / "conf" / "local.yaml", own / "runs"}
