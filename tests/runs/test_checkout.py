"""Commit and changes are those of this package's own checkout."""

import subprocess
from pathlib import Path

import pytest

from rec_experiments.runs import checkout


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
    parent = repository(tmp_path, checkout.TRACKED, "conf/a.yaml")
    monkeypatch.setattr(checkout, "PARENT", parent)
    return tmp_path


def test_an_own_checkout_has_its_commit_and_its_changes(own):
    (own / "conf" / "a.yaml").write_text("after\n")
    found = checkout.state()
    assert found["commit"] == git(own, "rev-parse", "HEAD").strip()
    assert "+after" in found["diff"]
    assert checkout.is_dirty()


@pytest.mark.parametrize("tracked", [False, True])
def test_the_repository_of_a_stranger_is_none_of_ours(tracked, tmp_path, monkeypatch):
    """Installed within it: its folder of packages ignored, or even tracked."""
    site = tmp_path / ".venv" / "site-packages"
    package = f".venv/site-packages/{checkout.TRACKED}"
    (site / checkout.TRACKED).parent.mkdir(parents=True)
    (site / checkout.TRACKED).write_text("")
    repository(tmp_path, "theirs.py", *([package] if tracked else []))
    (tmp_path / "theirs.py").write_text("after\n")
    monkeypatch.setattr(checkout, "PARENT", site)
    assert checkout.state() == {"commit": None, "diff": None}
    assert not checkout.is_dirty()
    assert checkout.ignored() == set()


def test_a_repository_without_our_files_is_none_of_ours(tmp_path, monkeypatch):
    """PARENT is its top, but it does not hold this package."""
    monkeypatch.setattr(checkout, "PARENT", repository(tmp_path, "theirs.py"))
    assert checkout.state() == {"commit": None, "diff": None}


def test_variables_of_git_point_to_no_other_repository(own, tmp_path_factory, monkeypatch):
    theirs = repository(tmp_path_factory.mktemp("theirs"), "theirs.py")
    monkeypatch.setenv("GIT_DIR", str(theirs / ".git"))
    found = checkout.state()
    monkeypatch.delenv("GIT_DIR")
    assert found["commit"] == git(own, "rev-parse", "HEAD").strip()


def test_changes_that_are_no_text_are_read(own):
    (own / "conf" / "a.yaml").write_bytes(b"\xff\xfe after\n")
    assert "after" in checkout.state()["diff"]


def test_ignored_files_and_folders_are_known(own):
    (own / ".gitignore").write_text("local.yaml\nruns/\n")
    (own / "conf" / "local.yaml").write_text("")
    (own / "runs" / "a").mkdir(parents=True)
    (own / "runs" / "a" / "b").write_text("")
    assert checkout.ignored() == {own / "conf" / "local.yaml", own / "runs"}
