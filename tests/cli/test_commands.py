"""The commands of `python -m rec_experiments`.

1. Each has a help page, which loads no torch.
2. An unknown command, option, key or value is one line and exit code 2; nothing is written.
3. Terminals and locales without our letters, closed pipes, and missing packages.
"""

import os
import re
import subprocess
import sys

import pytest
from conftest import command, refused
from test_cli import HEAVY, loaded

from rec_experiments.cli import main
from rec_experiments.cli.parser import (
    WIDTH,
    Parser,
    file_ending,
    names_among,
    number_between,
    run_folders,
)
from rec_experiments.errors import UserError

PAGES = """
import contextlib
from rec_experiments.cli import main
for name in main.COMMANDS:
    with open(f"{name}.txt", "w") as file, contextlib.redirect_stdout(file):
        with contextlib.suppress(SystemExit):
            main.run_command(name, "--help")
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, str]:
    """The help of each command, made by a process that loads no torch."""
    folder = tmp_path_factory.mktemp("pages")
    assert loaded("-c", PAGES, cwd=folder).isdisjoint(HEAVY)
    return {name: (folder / f"{name}.txt").read_text() for name in main.COMMANDS}


@pytest.mark.parametrize("name", main.COMMANDS)
def test_help_page(pages, name):
    page = pages[name]
    assert page.startswith(f"usage: python -m rec_experiments {name} [-h] ")
    assert max(map(len, page.splitlines())) <= WIDTH
    assert not re.search(r"--(?!help)|%|\{", page.replace("95 %", ""))
    usage = page.partition("\n\n")[0]
    for key in re.findall(r"\[(\w+=\S+)\]", usage):
        assert re.search(
            rf"^  {re.escape(key)} .*?(default: |figure|folders|instead)", page, re.M | re.S
        )


@pytest.mark.parametrize("words", [("watch", "--help"), ("--help", "watch"), ("-h", "watch")])
def test_help_in_either_order(words, tmp_path):
    page = command(*words, cwd=tmp_path)
    assert page.returncode == 0
    assert page.stdout.startswith("usage: python -m rec_experiments watch ")


def test_first_page_lists_the_commands(tmp_path):
    page = command("--help", cwd=tmp_path).stdout
    section = page.partition("Commands (COMMAND --help tells more)\n")[2].partition("\n\n")[0]
    assert dict(line.split(maxsplit=1) for line in section.splitlines()) == main.COMMANDS


@pytest.fixture
def parser() -> Parser:
    parser = Parser("name", "About it.")
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--out", type=file_ending(".md", ".json"))
    parser.add_argument("--runs", type=run_folders)
    parser.add_argument("--scale", type=names_among(["mini", "paper"]), default=["mini"])
    parser.add_argument("--step", type=number_between(0, 9))
    parser.add_argument("--every", type=number_between(0.5, float("inf"), float))
    parser.add_overrides("of a run")
    return parser


def test_words_options_and_overrides(parser, tmp_path):
    found = parser.parse(
        ["a", "seed=0", f"runs={tmp_path},.", "clip.low=a=b", "step=3", "out=x.md", "b", "step=4"]
    )
    assert found.words == ["a", "b"]
    assert [*map(str, found.runs)] == [str(tmp_path), "."]
    assert (found.step, str(found.out), found.scale, found.every) == (4, "x.md", ["mini"], None)
    assert found.overrides == ["seed=0", "clip.low=a=b"]


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("out=x.txt", "out=x.txt: the name must end in .md or .json"),
        ("runs=", "runs=: no such folder"),
        ("runs=.,nowhere", "runs=nowhere: no such folder"),
        ("scale=mini,huge", "scale=huge: does not exist; allowed, separated by commas: mini,"),
        ("step=-1", "step=-1: must be a whole number, from 0 to 9"),
        ("step=1.0", "step=1.0: must be a whole number"),
        ("every=nan", "every=nan: must be a number, at least 0.5"),
        ("every=", "every=: must be a number"),
        ("--foo", "unrecognized arguments: --foo; see python -m rec_experiments name --help"),
    ],
)
def test_values_out_of_range(parser, word, told):
    with pytest.raises(UserError, match=f"^{re.escape(told)}"):
        parser.parse([word])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["claim", "scale=mini"], "claim: no such command; did you mean claims? allowed: watch"),
        (["claims", "out=notes.txt"], "out=notes.txt: the name must end in .json or .md; see "),
        (["figures", "fig33"], "figure fig33: no such figure; did you mean fig3? --help lists "),
        (["algorithms", "grpoo"], "grpoo: no such preset; did you mean grpo? --help lists all"),
        (["report", "fig3"], "unrecognized arguments: fig3"),
        (["claims", "command"], "commands: invalid choice: 'command'"),
        (["plan", "=3"], "unrecognized arguments: =3"),
        (["plan", "padding=1"], "padding=1: must be a number of at least 0, and below 1"),
        (["plan", "gpus=7"], "gpus=7: unknown; allowed: "),
        (["sweeps", "list", "fig3", "sync=3"], "sync=3: no such choice; allowed: "),
        (["sweeps", "lst", "fig3"], "ACTION: invalid choice: 'lst'"),
        (["sweeps", "list", "fig3", "--all"], "unrecognized arguments: --all"),
        (["plan", "model.warm_start=x"], "model.warm_start=x: must be a mapping"),
        (["plan", "setting=3"], "setting=3: no such choice; allowed: lm/deepscaler, "),
        (["setting=nothing"], "setting=nothing: no such choice; allowed: lm/deepscaler, "),
        (["--zzz"], "--zzz: unknown option; allowed: --help, --hydra-help, --version, "),
        (["--algo=grpo"], "--algo=grpo: unknown option; did you mean algo=grpo? allowed: --help, "),
        (["--multi"], "--multi: unknown option; did you mean --multirun? allowed: --help, "),
        (["seed=1", "-x"], "-x: unknown option; allowed: "),
        (["-m", "sweep=fig3", "--dry-run"], "--dry-run: unknown option; "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(words, told, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("theirs")
    assert refused(words, monkeypatch, capfd, main.main).startswith(f"error: {told}")
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]
    assert (tmp_path / "notes.txt").read_text() == "theirs"


def test_version(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["rec_experiments", "--version"])
    main.main()
    assert re.fullmatch(r"rec_experiments \d+\.\d+\.\d+\n", capsys.readouterr().out)


WITHOUT_UTF8 = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("words", ["regime sweep=fig3", "algorithms grpo", "--help"])
def test_locale_without_our_letters(words, tmp_path):
    done = subprocess.run(
        [sys.executable, "-X", "utf8=0", "-m", "rec_experiments", *words.split()],
        cwd=tmp_path, env={**os.environ, **WITHOUT_UTF8}, capture_output=True, check=False,
    )  # fmt: skip
    said = done.stderr.decode("ascii")
    assert done.returncode == 0 or "no run found" in said, said
    assert "Traceback" not in said


@pytest.mark.parametrize("words", [["algorithms", "grpo"], ["claims", "--help"], ["--help"]])
def test_closed_pipe_ends_a_command_quietly(words, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "rec_experiments", *words], cwd=tmp_path, stdout=writer,
        stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode in (0, 1)  # argparse itself ignores a closed pipe
    assert done.stderr == ""


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
def test_missing_package_is_one_line(module, package, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCK.format(module))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = command("watch", cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {package}: is not installed here; python -m pip install")
    assert done.stderr.count("\n") == 1
