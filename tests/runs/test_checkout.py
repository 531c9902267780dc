"""What these tests lock: provenance is of this package's own checkout, and tells no secrets."""

import shutil
import subprocess
from pathlib import Path

import pytest

from rec_experiments.runs import checkout

ROOT = Path(__file__).parents[2]


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
    """A checkout of this package, with a secret among its files."""
    names = (checkout.TRACKED, "conf/a.yaml", "deploy/id_rsa", "API.env")
    monkeypatch.setattr(checkout, "PARENT", repository(tmp_path, *names))
    return tmp_path


def test_an_own_checkout_has_its_commit_and_its_changes(own):
    (own / "conf" / "a.yaml").write_text("after\n")
    found = checkout.state()
    assert found["commit"] == git(own, "rev-parse", "HEAD").strip()
    assert "+after" in found["diff"]
    assert "left_out" not in found
    assert checkout.is_dirty()


def test_changes_of_secrets_are_left_out_and_named(own):
    for name in ("conf/a.yaml", "deploy/id_rsa", "API.env"):
        (own / name).write_text(f"after in {name}\n")
    found = checkout.state()
    assert "+after in conf/a.yaml" in found["diff"]
    assert "id_rsa" not in found["diff"]
    assert "API" not in found["diff"]
    assert sorted(found["left_out"]) == ["API.env", "deploy/id_rsa"]


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


@pytest.mark.parametrize(
    "name",
    [".env", ".env.local", "Prod.ENV", "keys/server.pem", "ID_RSA", "id_ed25519.pub", "my_secrets",
     "secrets/a.yaml", "gcp-credentials.json", "passwords.txt", "hf_token", "HF_TOKEN.yaml",
     "token.txt", "access_token.py"],
)  # fmt: skip
def test_names_of_secrets(name):
    assert checkout.looks_secret(name)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_no_file_of_ours_looks_secret():
    """Its changes would be missing in every provenance, and it in every submission."""
    if not checkout.exists():
        pytest.skip("not in a checkout")
    assert [
        name for name in git(ROOT, "ls-files").splitlines() if checkout.looks_secret(name)
    ] == []
