"""Pages of help that are kept: never another than the one that would be composed.

1. The second time one is asked for, nothing of Hydra is imported, and it is the same.
2. Whatever it is made of changes it: configuration, remarks, code, a package outside, a release.
3. A cache that is damaged, or cannot be written, costs time and nothing else.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rec_experiments import cache
from rec_experiments.cli import pages
from rec_experiments.config import installed
from rec_experiments.errors import UserError

ROOT = Path(__file__).parents[2]
SLOW = ("hydra", "omegaconf", "torch", "yaml", "json", "typing", "pathlib")
# Python runs this before all else; at its end the process says what it has imported.
SPY = f"""
import atexit, sys
atexit.register(lambda: print("imported", *({set(SLOW)!r} & sys.modules.keys()), file=sys.stderr))
"""


@pytest.fixture(scope="module")
def spy(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("spy")
    (folder / "sitecustomize.py").write_text(SPY)
    return folder


def asked(*words: str, paths: list[Path], kept: Path) -> tuple[str, set[str]]:
    """The page, and which slow modules were imported for it."""
    environment = {
        "PYTHONPATH": os.pathsep.join(map(str, paths)), "REC_EXPERIMENTS_CACHE": str(kept),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "rec_experiments", *words], env={**os.environ, **environment},
        cwd=kept.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    [imported] = [line for line in done.stderr.splitlines() if line.startswith("imported")]
    return done.stdout, set(imported.split()[1:])


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["claims", "--help"], ["plan", "-h"]])
def test_the_second_time_nothing_slow_is_imported(words, spy, tmp_path):
    paths = [spy, ROOT, ROOT / "plugins"]
    composed, imported = asked(*words, paths=paths, kept=tmp_path / "cache")
    assert {"hydra", "omegaconf", "yaml"} <= imported
    assert asked(*words, paths=paths, kept=tmp_path / "cache") == (composed, set())
    assert composed == asked(*words, paths=paths, kept=tmp_path / "another")[0]
    assert composed.count("\n") > 5


def test_a_page_with_overrides_is_composed(spy, tmp_path):
    ask = {"paths": [spy, ROOT, ROOT / "plugins"], "kept": tmp_path / "cache"}
    asked("--help", **ask)
    page, imported = asked("--help", "clip=wide", **ask)
    assert "hydra" in imported
    assert "high: 2.0" in page
    assert "high: 2.0" not in asked("--help", **ask)[0]


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A checkout of its own, to be changed."""
    folder = tmp_path / "checkout"
    for name in ("rec_experiments", "plugins", "sweeps", "conf"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignore)
    return folder


def install(site: Path, name: str, choice: str) -> None:
    """A package outside with one more choice of `clip`."""
    conf = site / name / "conf" / "clip"
    conf.mkdir(parents=True)
    (site / name / "__init__.py").write_text("")
    (conf / f"{choice}.yaml").write_text("defaults: [/schema/clip/two_side@_here_, _self_]\n")
    about = site / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{installed.GROUP}]\n{name} = {name}\n")


def test_whatever_it_is_made_of_changes_it(checkout, spy, tmp_path):
    site = tmp_path / "site"
    site.mkdir()

    def ask() -> str:
        paths = [spy, site, checkout, checkout / "plugins"]
        first, _ = asked("--help", paths=paths, kept=tmp_path / "cache")
        assert asked("--help", paths=paths, kept=tmp_path / "cache") == (first, set())
        return first

    before = ask()
    assert "mine" not in before
    (checkout / "conf" / "clip" / "mine.yaml").write_text("defaults: [narrow]\n")
    assert ", mine, " in ask()
    file = checkout / "conf" / "config.yaml"
    file.write_text(file.read_text().replace("# of data order", "# of the order of data"))
    assert "# of the order of data" in ask()
    file = checkout / "rec_experiments" / "help.py"
    file.write_text(file.read_text().replace("where runs stand,", "where all runs stand,"))
    assert "where all runs stand," in ask()
    install(site, "their_clips", "theirs")
    assert ", theirs, " in ask()
    theirs = site / "their_clips" / "conf" / "clip" / "theirs.yaml"
    theirs.rename(theirs.with_name("other_than_theirs.yaml"))
    assert ", other_than_theirs, " in ask()
    shutil.rmtree(site / "their_clips-1.0.dist-info")
    assert "other_than_theirs" not in ask()


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    """Folders in the place of what is installed here."""
    for name in ("package", "conf", "site"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(installed, "PACKAGE", str(tmp_path / "package"))
    monkeypatch.setattr(installed, "CONF", str(tmp_path / "conf"))
    monkeypatch.setattr(installed, "COPIED", str(tmp_path / "package" / "outside.json"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), "", *sys.path])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_releases_and_plugins_count(place):
    digests = [pages.digest()]

    def has_changed() -> bool:
        digests.append(pages.digest())
        return None not in digests and len(set(digests)) == len(digests)

    (place / "site" / "hydra_core-1.3.9.dist-info").mkdir()
    assert has_changed()
    (place / "site" / "hydra_core-1.3.9.dist-info").rename(place / "site" / "other-1.dist-info")
    assert has_changed()
    (place / "site" / "hydra_plugins").mkdir()
    (place / "site" / "hydra_plugins" / "search.py").write_text("A = 1\n")
    assert has_changed()
    (place / "site" / "hydra_plugins" / "search.py").write_text("A = 2\n")
    assert has_changed()
    (place / "package" / "a.py").write_text("")
    assert has_changed()
    (place / "package" / "a.py").rename(place / "package" / "b.py")
    assert has_changed()
    install(place / "site", "their_digested", "theirs")
    assert has_changed()
    (place / "site" / "their_digested" / "__init__.py").write_text("A = 1\n")
    assert has_changed()


def test_where_it_cannot_be_told_nothing_is_kept(place, monkeypatch):
    monkeypatch.setenv("REC_EXPERIMENTS_CACHE", str(place / "cache"))
    assert pages.digest()
    (place / "archive.zip").write_text("")
    monkeypatch.setattr(sys, "path", [*sys.path, str(place / "archive.zip")])
    assert pages.digest() is None
    pages.show("run", lambda: print("composed"))
    assert not (place / "cache").exists()
    sys.path.pop()
    (place / "package" / "outside.json").write_text("[]")  # a copy of the code
    assert pages.digest() is None
    (place / "package" / "outside.json").unlink()
    install(place / "site", "their_lost", "theirs")
    assert pages.digest()
    shutil.rmtree(place / "site" / "their_lost")
    assert pages.digest() is None


def composed(times: list[str], text: str = "a page") -> None:
    times.append(text)
    print(text)


@pytest.fixture
def kept(place, monkeypatch) -> Path:
    monkeypatch.setenv("REC_EXPERIMENTS_CACHE", str(place / "cache"))
    return place / "cache"


@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(file.read_bytes()[:-2]),
        lambda file: file.write_bytes(file.read_bytes().replace(b"page", b"cage")),
        lambda file: file.write_bytes(b"\xff\x00\n\xff"),
        lambda file: (file.unlink(), file.mkdir()),
    ],
    ids=["empty", "torn", "changed", "garbage", "a folder"],
)
def test_a_damaged_page_is_composed_again(damage, kept, capsys):
    times: list[str] = []
    for _ in range(2):
        pages.show("run", lambda: composed(times))
    assert len(times) == 1
    [file] = kept.iterdir()
    damage(file)
    pages.show("run", lambda: composed(times))
    assert len(times) == 2
    assert capsys.readouterr().out == "a page\n" * 3


def test_a_cache_that_cannot_be_written_only_costs_time(place, monkeypatch, capsys):
    (place / "file").write_text("")
    monkeypatch.setenv("REC_EXPERIMENTS_CACHE", str(place / "file" / "cache"))
    times: list[str] = []
    for _ in range(2):
        pages.show("run", lambda: composed(times))
    assert len(times) == 2
    assert capsys.readouterr().out == "a page\n" * 2


def test_a_user_without_a_home_gets_the_page(place, monkeypatch, capsys):
    monkeypatch.delenv("REC_EXPERIMENTS_CACHE", raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)  # as for a user of no name
    before = sorted(place.iterdir())
    pages.show("run", lambda: print("a page"))
    assert capsys.readouterr().out == "a page\n"
    assert sorted(place.iterdir()) == before


def test_a_change_while_it_is_composed_is_not_missed(kept, place, capsys):
    def changes() -> None:
        print("of the old file")
        (place / "conf" / "a.yaml").write_text("")

    pages.show("run", changes)
    pages.show("run", lambda: print("of the new file"))
    assert capsys.readouterr().out == "of the old file\nof the new file\n"


def test_what_is_refused_is_not_kept(kept, capsys):
    def refuse() -> None:
        print("half of it")
        raise UserError("no")

    with pytest.raises(UserError):
        pages.show("claims", refuse)
    assert not kept.exists()
    assert capsys.readouterr().out == ""


def test_each_command_has_its_own_and_old_ones_go(kept, place, capsys):
    for version in range(cache.FILES_KEPT + 2):
        (place / "conf" / "a.yaml").write_text(f"a: {version}\n")
        for name in ("run", "claims"):
            pages.show(name, lambda name=name: print(name))
    assert capsys.readouterr().out == "run\nclaims\n" * (cache.FILES_KEPT + 2)
    assert len([*kept.glob("help_run_*")]) == len([*kept.glob("help_claims_*")]) == cache.FILES_KEPT


@pytest.mark.parametrize(
    ("words", "page"),
    [
        (["--help"], "run"), (["-h"], "run"), (["claims", "-h"], "claims"),
        ([], None), (["claims"], None), (["--help", "seed=1"], None), (["seed=1", "-h"], None),
        (["../x", "-h"], None), (["claims", "seed=1", "-h"], None),
    ],
)  # fmt: skip
def test_a_page_is_asked_for_and_nothing_else(words, page):
    assert pages.asked(words) == page
