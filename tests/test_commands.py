"""The sub-commands of `python -m rec_experiments`, and their help.

1. Each has a page of one style that loads no torch: usage, a sentence, a line on each key.
2. `python -m rec_experiments NAME` is `python -m rec_experiments.NAME`.
3. A word that is no sub-command is told, with what was probably meant.
"""

import re

import pytest
from conftest import command, refused
from test_cli import loaded

from rec_experiments import commands, help

PAGES = """
import contextlib, importlib, sys
from rec_experiments import commands
for name in commands.COMMANDS:
    with open(f"{name}.txt", "w") as file, contextlib.redirect_stdout(file):
        sys.argv[1:] = ["--help"]
        importlib.import_module(commands.module(name)).main(["--help"])
"""
KEY = re.compile(r"[a-z]+=[A-Z/]+(?:,…|\.md)?|KEY=VALUE")


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, str]:
    """The help of each sub-command, made by a process that loads no torch."""
    folder = tmp_path_factory.mktemp("pages")
    assert loaded("-c", PAGES, cwd=folder) == set()
    return {name: (folder / f"{name}.txt").read_text() for name in commands.COMMANDS}


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_a_page_is_of_the_one_style(pages, name):
    usage, about, entries = pages[name].rstrip("\n").split("\n\n")
    ways = [line[7:] for line in usage.splitlines()]
    assert usage.startswith("usage: ")
    assert all(way.startswith(f"python -m rec_experiments {name} ") for way in ways)
    assert about.endswith(".")
    assert {*KEY.findall(usage)} <= {line.split()[0] for line in entries.splitlines()}
    assert all(len(line) <= help.WIDTH + 10 for line in pages[name].splitlines())
    assert not re.search(r"[{}]|--", pages[name].replace("--help", ""))


@pytest.mark.parametrize("name", commands.COMMANDS)
def test_a_key_with_a_value_of_its_own_names_its_default(pages, name):
    entries = re.split(r"\n(?=  \S)", pages[name].rstrip("\n").split("\n\n")[2])
    for entry in entries:
        key = entry.split()[0]
        if "=" in key and key not in ("KEY=VALUE", "wandb=ENTITY/PROJECT") and name != "check_data":
            assert "default: " in entry or key == "sweep=NAME", entry


def test_both_ways_to_call_one_are_the_same(pages, monkeypatch, capsys):
    for arguments in (["claims", "--help"], ["claims", "scale=paper", "-h"]):
        monkeypatch.setattr("sys.argv", ["rec_experiments", *arguments])
        commands.main()
        assert capsys.readouterr().out == pages["claims"]


def test_the_first_page_lists_them(tmp_path):
    page = command("--help", cwd=tmp_path).stdout
    section = page.partition("Commands (COMMAND --help tells more)\n")[2].partition("\n\n")[0]
    listed = dict(line.split(maxsplit=1) for line in section.splitlines())
    assert listed == commands.COMMANDS


def test_a_word_that_is_no_command_is_told(monkeypatch, capfd):
    told = refused(["claim", "scale=mini"], monkeypatch, capfd, commands.main)
    assert told.startswith("error: claim: is no sub-command; did you mean claims? allowed: watch")
    assert told.endswith("or key=value for a run (see --help)")
