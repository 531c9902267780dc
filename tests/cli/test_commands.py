"""The commands of `python -m rec_experiments`.

1. Help: a first page of one screen, a page for each command, groups with their choices.
2. An unknown command, option, key or value is one line and exit code 2; nothing is written.
3. What computes no gradient loads neither torch nor the libraries that load it.
4. Terminals and locales without our letters, closed pipes, missing packages, interrupts.

What a user's own process alone can show is tested in eight of them, here, in test_bad_input.py and
in test_run.py.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import yaml
from conftest import command, composed, refused
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rec_experiments.cli import help, main, parser
from rec_experiments.cli.errors import one_line_errors
from rec_experiments.cli.parser import (
    WIDTH,
    Overrides,
    Runs,
    file_ending,
    number,
    option,
)
from rec_experiments.common.errors import UserError
from rec_experiments.config import plugins
from rec_experiments.config.plugins import choices_by_group

ROOT = Path(__file__).parents[2]


def fits(page: str) -> bool:
    return max(map(len, page.splitlines())) <= WIDTH


def test_the_first_page_fits_a_screen():
    page = help.page([], main.COMMANDS)
    assert len(page.splitlines()) <= 60
    assert fits(page)
    words = {*re.findall(r"[\w-]+", page)}
    assert words > {*main.COMMANDS, *choices_by_group()}


@pytest.mark.parametrize("name", main.COMMANDS)
def test_help_page_of_a_command(name, capsys):
    main.run_command(name, "--help")
    page = capsys.readouterr().out
    assert page.startswith(f"Usage: python -m rec_experiments {name} ")
    assert fits(page)


def test_help_of_groups_choices_and_keys():
    for group, choices in choices_by_group().items():
        page = help.page([group], {})
        assert fits(page)
        assert {line.split()[0] for line in page.splitlines()[1:]} >= {*choices}
    presets = help.page(["algo"], {})
    assert " Dr. GRPO: no division " in presets
    assert " GRPO, Eq. 8.\n" in presets
    text = (plugins.CONF / "clip/one_side.yaml").read_text()
    assert help.page(["clip=one_side", "steps=3"], {}) == f"clip=one_side\n{text}".rstrip()
    keys = help.page(["keys"], {})
    assert "\nsteps: 150 " in keys
    assert "hydra:" not in keys
    for word, told in (("clipp", "did you mean clip?"), ("clip=one_sid", "did you mean one_side?")):
        with pytest.raises(UserError, match=re.escape(told)):
            help.page([word], {})


def example(
    *overrides: Overrides,
    out: Annotated[Path | None, option(file_ending(".md", ".json"), "a file")] = None,
    runs: Runs = None,
    step: Annotated[int | None, number("N", 0, 9)] = None,
    every: Annotated[float | None, number("seconds", 0.5)] = None,
    once: bool = False,
) -> None:
    print(overrides, out, runs and [*map(str, runs)], step, every, once)


def test_options_and_overrides(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ["seed=~/0", "--runs=~,.", "clip.low=a=b", "--step", "3", "--out=x.md", "+a=1"]
    parser.call("name", "About it.", example, words)
    assert capsys.readouterr().out == (
        f"('seed={tmp_path}/0', 'clip.low=a=b', '+a=1') x.md ['{tmp_path}', '.'] 3 None False\n"
    )


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("--out=x.txt", "--out=x.txt: the name must end in .md or .json"),
        ("--runs=.,nowhere", "--runs=nowhere: no such folder"),
        ("--every=nan", 'Invalid value "nan" for --every. Must be >= 0.5; see '),
        ("--xyz=3", "--xyz=3: unknown option; allowed: KEY=VALUE, --out, --runs, --step, "),
        ("--step", "Parameter --step requires an argument"),
        ("=3", "=3: must be KEY=VALUE"),
    ],
)
def test_arguments_that_are_refused(word, told):
    with pytest.raises(UserError, match=f"^{re.escape(told)}"):
        parser.call("name", "About it.", example, [word])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["claim", "seed=0"], "claim: no such command; did you mean claims? "),
        (["grpo"], "grpo: no such command; did you mean algo=grpo? "),
        (["fig3"], "fig3: no such command; did you mean -m sweep=fig3 or figures fig3? "),
        (["xyzzy"], "xyzzy: no such command; allowed: watch, figures, "),
        (["figures", "fig33"], "figure fig33: no such figure; did you mean fig3? --help lists "),
        (["algorithms", "grpoo"], "grpoo: no such preset; did you mean grpo? --help lists all"),
        (["export", "a", "b", "c"], "c: is not expected; see "),
        (["plan", "padding=1"], "padding=1: must be a number of at least 0, and below 1"),
        (["sweeps", "lst", "fig3"], 'Invalid value "lst" for ACTION'),
        (
            ["export-loss", "grpo", "--trainer=trl", "--out=1x.py"],
            "--out=1x.py: must be the name of a Python module",
        ),
        (["steps=1" + "0" * 30], "steps=1" + "0" * 30 + ": must be below 9223372036854775808"),
        (["sweeps", "status"], "sweeps status: needs the name of a sweep"),
        (["algo=grpo,opmd"], "algo=grpo,opmd: several values make several runs, which needs -m"),
        (["--algo=grpo"], "--algo=grpo: unknown option; allowed: KEY=VALUE, --multirun, "),
        (["--resolve"], "--resolve: goes with --cfg"),
        (["--cfg", "job", "clip.hi=1"], "clip.hi: no such key; did you mean clip.high?"),
        (["-m", "--cfg", "job", "seed=0,1"], "--cfg: shows one run, without -m"),
        (["-m", "hydra.launcher.job=1"], "hydra.launcher.job: no such key; did you mean hydra."),
        (["-m", "hydra/launcher=null"], "Config group override must be a string"),
        (
            ["-m", "hydra/launcher=slurm", "hydra.launcher.setup=3"],
            "hydra.launcher.setup=3: must be a list",
        ),
        (
            ["-m", "hydra/launcher=slurm", "hydra.launcher.options=3"],
            "hydra.launcher.options=3: must be a mapping",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line(words, told, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert refused(words, monkeypatch, capfd).startswith(f"error: {told}")
    assert [*tmp_path.iterdir()] == []


def test_cfg_shows_the_experiment(capsys):
    main.run_command("algo=gmpo", "--cfg", "job", "--resolve")
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown == OmegaConf.to_container(composed("algo=gmpo"), resolve=True)


def test_version(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["rec_experiments", "--version"])
    main.main()
    assert re.fullmatch(r"rec_experiments \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize("wrapper", [OmegaConfBaseException, RuntimeError])
def test_a_wrapped_interrupt_is_an_interrupt(wrapper, monkeypatch, capsys):
    """Python 3.11 and OmegaConf wrap a KeyboardInterrupt that reaches them in some places."""

    @one_line_errors()
    def interrupted(*words):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise wrapper("defaults: no such key") from error

    monkeypatch.setattr(main, "run_command", interrupted)
    with pytest.raises(SystemExit, match="130"):
        main.main()
    assert capsys.readouterr().err == "interrupted\n"


# Processes ---------------------------------------------------------------------------------------

LIGHT = """
import sys
from rec_experiments.cli import main
for words in (["--help"], ["sweeps", "list"], ["sweeps", "list", "fig3"], ["figures", "--help"],
              ["sweeps", "status", "fig3"], ["claims", "--commands"]):
    sys.argv[1:] = words
    try:
        main.main()
    except SystemExit as end:
        assert not end.code
assert not {"torch", "transformers", "datasets", "wandb", "vllm"} & sys.modules.keys()
"""


PYTHON = shlex.quote(sys.executable)


def shell(line, cwd, **environment):
    return subprocess.run(
        line, shell=True, cwd=cwd, env={**os.environ, **environment},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def test_no_torch_without_gradients(tmp_path):
    done = shell(f"{PYTHON} -c {shlex.quote(LIGHT)}", tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_folder_that_is_gone_is_one_line(tmp_path):
    (tmp_path / "gone").mkdir()
    line = f"rmdir ../gone; {PYTHON} -m rec_experiments steps=1"
    done = shell(line, tmp_path / "gone", PYTHONPATH=os.pathsep.join(sys.path))
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: the current folder has been removed")


def test_locale_without_our_letters(tmp_path):
    without = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    line = f"{PYTHON} -X utf8=0 -m rec_experiments algorithms grpo"
    done = shell(line, tmp_path, **without)
    assert done.returncode == 0, done.stderr


NOBODY = """
import os, pwd, runpy, sys
del os.environ["HOME"]
def getpwuid(number): raise KeyError(number)
pwd.getpwuid = getpwuid
sys.argv = ["rec_experiments", *"steps=1 eval_problems=4 model.warm_start.steps=1".split()]
runpy.run_module("rec_experiments", run_name="__main__")
"""


def test_a_container_without_a_home_folder_trains_and_draws(tmp_path):
    """Nor does a backend of matplotlib that does not exist matter."""
    line = f"unset REC_EXPERIMENTS_CACHE; {PYTHON} -c {shlex.quote(NOBODY)}"
    done = shell(line, tmp_path, TMPDIR=str(tmp_path), MPLBACKEND="nope")
    assert done.returncode == 0, done.stderr
    assert [*tmp_path.glob("runs/*/curves.png")]
    assert [*tmp_path.glob("rec_experiments-*/warm_start_*.pt")]


def test_closed_pipe_ends_a_command_quietly(tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "rec_experiments", "--help"], cwd=tmp_path, stdout=writer,
        stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 1
    assert done.stderr == ""


def test_closed_output_ends_no_command(tmp_path):
    done = shell(f"{PYTHON} -m rec_experiments algorithms grpo >&-", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


BLOCK = """
import sys
class Block:
    def find_spec(self, name, *rest):
        if name.partition(".")[0] == "hydra":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
"""


def test_missing_package_is_one_line(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = command("watch", cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: hydra-core: is not installed here; python -m pip install")
    assert done.stderr.count("\n") == 1
