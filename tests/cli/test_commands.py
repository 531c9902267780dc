"""The sub-commands of `python -m rec_experiments`, and their help.

1. Each has a page of one style that loads no torch: usage, a sentence, a line on each key.
2. `python -m rec_experiments NAME` is `python -m rec_experiments.NAME`.
3. A word that is no sub-command is told, with what was probably meant.
4. What a command does not know, or would write under a name of another kind, is one line; nothing
   is written.
5. A terminal and a locale without our letters stop no command.
6. What a full disk behind the output has lost is one line, and exit code 1.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import command, refused
from test_cli import HEAVY, loaded

from rec_experiments.cli import help, main

PAGES = """
import contextlib, importlib, sys
from rec_experiments.cli import help, main
for name in help.COMMANDS:
    with open(f"{name}.txt", "w") as file, contextlib.redirect_stdout(file):
        sys.argv[1:] = ["--help"]
        importlib.import_module(main.module(name)).main(["--help"])
"""
KEY = re.compile(r"[a-z]+=[A-Z/]+(?:,…|\.md)?|KEY=VALUE")


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, str]:
    """The help of each sub-command, made by a process that loads no torch."""
    folder = tmp_path_factory.mktemp("pages")
    assert loaded("-c", PAGES, cwd=folder).isdisjoint(HEAVY)
    return {name: (folder / f"{name}.txt").read_text() for name in help.COMMANDS}


@pytest.mark.parametrize("name", help.COMMANDS)
def test_a_page_is_of_the_one_style(pages, name):
    usage, about, entries = pages[name].rstrip("\n").split("\n\n")
    ways = [line[7:] for line in usage.splitlines()]
    assert usage.startswith("usage: ")
    assert all(way.startswith(f"python -m rec_experiments {name} ") for way in ways)
    assert about.endswith(".")
    assert {*KEY.findall(usage)} <= {line.split()[0] for line in entries.splitlines()}
    assert all(len(line) <= help.WIDTH + 10 for line in pages[name].splitlines())
    assert not re.search(r"[{}]|--", pages[name].replace("--help", ""))


@pytest.mark.parametrize("name", help.COMMANDS)
def test_a_key_with_a_value_of_its_own_names_its_default(pages, name):
    entries = re.split(r"\n(?=  \S)", pages[name].rstrip("\n").split("\n\n")[2])
    for entry in entries:
        key = entry.split()[0]
        if "=" in key and key not in ("KEY=VALUE", "wandb=ENTITY/PROJECT") and name != "check_data":
            assert "default: " in entry or key == "sweep=NAME", entry


def test_both_ways_to_call_one_are_the_same(pages, monkeypatch, capsys):
    for arguments in (["claims", "--help"], ["claims", "scale=paper", "-h"]):
        monkeypatch.setattr("sys.argv", ["rec_experiments", *arguments])
        main.main()
        assert capsys.readouterr().out == pages["claims"]


def test_the_first_page_lists_them(tmp_path):
    page = command("--help", cwd=tmp_path).stdout
    section = page.partition("Commands (COMMAND --help tells more)\n")[2].partition("\n\n")[0]
    listed = dict(line.split(maxsplit=1) for line in section.splitlines())
    assert listed == help.COMMANDS


def test_a_word_that_is_no_command_is_told(monkeypatch, capfd):
    told = refused(["claim", "scale=mini"], monkeypatch, capfd, main.main)
    assert told.startswith("error: claim: is no sub-command; did you mean claims? allowed: watch")
    assert told.endswith("or key=value for a run (see --help)")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["tune", "foo=1"], "foo=1: is not understood; allowed: scale=NAME,…, "),
        (["tune", "out=notes.txt"], "out=notes.txt: the name must end in .yaml"),
        (["algorithms", "out=notes.txt"], "out=notes.txt: the name must end in .md"),
        (["report", "out=notes.txt"], "out=notes.txt: the name must end in .html"),
        (["report", "runs="], "runs=: no such folder"),
        (["claims", "runs=.,"], "runs=: no such folder"),
        (["plan", "=3"], "=3: names no key"),
        (["sweeps", "list", "fig3", "sync=3"], "sync=3: is no name of a choice; allowed: "),
        (["plan", "dataset=own", "dataset.train=x"], "dataset.train=x: takes no value of its "),
        (["plan", "setting=3"], "setting=3: is no name of a choice; allowed: mini/deepscaler, "),
        (["plan", "setting=paper/nothing"], "setting=paper/nothing: no such choice; allowed: "),
        (["watch", "."], ".: holds no run; name run folders, or a sweep=NAME"),
        (["new", "algorithm", "null"], "new algorithm null: is a value on a command line"),
        (["--foo"], "--foo: is no option; allowed: --help, --hydra-help, --version, --cfg, "),
        (["--algo=grpo"], "--algo=grpo: is no option; did you mean algo=grpo? allowed: --help, "),
        (["seed=1", "-x"], "-x: is no option; allowed: "),
        (["-m", "sweep=fig3", "--dry-run"], "--dry-run: is no option; allowed: "),
        (["--cfg", "jobs"], "--cfg/-c: invalid choice: 'jobs'"),
        (["check_data", "--dataset", "own"], "--dataset: is no option; allowed: "),
        (["claims", "--foo"], "--foo: is no option; allowed: -h, --help, KEY=VALUE"),
        (["sweeps", "list", "fig3", "--all"], "--all: is no option; allowed: -h, --help"),
    ],
)
def test_bad_input_is_one_line(words, told, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("theirs")
    assert told in refused(words, monkeypatch, capfd, main.main)
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "theirs"


def test_choices_of_a_folder_of_choices_are_named(monkeypatch, capfd):
    told = refused(["setting=nothing"], monkeypatch, capfd)
    assert "setting=nothing: no such choice; allowed: mini/deepscaler, " in told
    assert "paper/guru" in told


def test_the_version_is_that_of_this_project(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["rec_experiments", "--version"])
    main.main()
    assert re.fullmatch(r"rec_experiments \d+\.\d+\.\d+\n", capsys.readouterr().out)


WITHOUT_UTF8 = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    "words", ["regime check sweep=fig3", "claims scale=mini seed=0", "report figures=theorem1"]
)
def test_a_locale_without_our_letters_stops_no_command(words, tmp_path):
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-m", "rec_experiments", *words.split()],
        cwd=tmp_path, env={**os.environ, **WITHOUT_UTF8}, capture_output=True, check=False,
    )  # fmt: skip
    told = done.stderr.decode("ascii")
    assert done.returncode == 0 or "no run found" in told, told
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "words",
    [["--help"], ["seed=1", "--help"], ["--version"], ["--cfg", "job"],
     ["claims", "--help"], ["algorithms", "grpo"], ["algorithms"]],
    ids=" ".join,
)  # fmt: skip
def test_what_a_full_disk_has_lost_is_told(words, tmp_path):
    words = words if words[0] == "-m" else ["-m", "rec_experiments", *words]
    for _ in range(1 + (words[-1] == "--help")):  # composed, and kept
        with open("/dev/full", "wb") as full:
            done = subprocess.run(
                [sys.executable, *words], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE,
                text=True, check=False,
            )  # fmt: skip
        assert done.returncode == 1
        assert done.stderr == "error: standard output: No space left on device\n"


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "rec_experiments", "algorithms"], cwd=tmp_path, stdout=writer,
        stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [("watch", "--help"), ("--help", "watch"), ("-h", "watch")])
def test_the_page_of_a_command_may_be_asked_for_in_either_order(words, tmp_path):
    told = command(*words, cwd=tmp_path)
    assert told.returncode == 0
    assert told.stdout.startswith("usage: python -m rec_experiments watch ")


BLOCK = """
import sys
class Block:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "{}":
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
"""


@pytest.mark.parametrize(
    ("module", "package"), [("hydra", "hydra-core"), ("yaml", "pyyaml"), ("rich", "rich")]
)
def test_a_missing_package_at_the_front_door_is_one_line(module, package, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCK.format(module))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    told = command("watch", cwd=tmp_path, PYTHONPATH=path)
    assert told.returncode == 2
    assert told.stderr.startswith(f"error: {package}: is not installed here; python -m pip install")
    assert told.stderr.count("\n") == 1
