"""What a command loads, and what its help says.

1. A command that computes no gradient loads neither torch nor the libraries that load it.
2. The help page lists every group with its choices, and the keys with their values.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import command, resolve
from fabricated import rows_of, write_run
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rec_experiments import sweeps
from rec_experiments.cli import help, main
from rec_experiments.cli.command import one_line_errors
from rec_experiments.cli.main import COMMANDS
from rec_experiments.cli.parser import WIDTH
from rec_experiments.config import schema
from rec_experiments.config.composition import choices_by_group
from rec_experiments.runs import provenance

ROOT = Path(__file__).parents[2]
HEAVY = ("torch", "transformers", "datasets", "wandb", "vllm")
DRAWING = ("matplotlib",)
FEW = ["sync=offline", "seed=0,1"]
# Python runs this before all else; at its end the process says what it has loaded. Those that it
# starts do not.
SPY = f"""
import atexit, os, sys
def tell(place):
    with open(place, "w") as file:
        file.write(" ".join(sorted({set(HEAVY + DRAWING)!r} & sys.modules.keys())))
if "LOADED" in os.environ:
    atexit.register(tell, os.environ.pop("LOADED"))
"""


def loaded(*arguments, cwd: Path) -> set[str]:
    """Of HEAVY and DRAWING, what `python ARGUMENTS`, which must succeed, has loaded at its end."""
    (cwd / "spy").mkdir(exist_ok=True)
    (cwd / "spy" / "sitecustomize.py").write_text(SPY)
    paths = [str(cwd / "spy"), str(ROOT), str(ROOT / "plugins")]
    said = cwd / "loaded.txt"
    said.unlink(missing_ok=True)
    environment = {"PYTHONPATH": os.pathsep.join(paths), "LOADED": str(said)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env={**os.environ, **environment},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(said.read_text().split())


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Path:
    """A folder with finished runs of fig3."""
    folder = tmp_path_factory.mktemp("swept")
    overrides = [*FEW, f"output_dir={folder}/runs"]
    for job in sweeps.jobs(sweeps.load_figure("fig3", overrides), overrides):
        write_run(job.path, rows_of(job.label, job.config["seed"], job.config["steps"]))
        (job.path / "config.yaml").write_text(yaml.safe_dump(job.config))
        (job.path / "provenance.json").write_text(json.dumps(provenance.collect(job.config, "")))
    return folder


def test_spy_sees_what_is_loaded(tmp_path):
    assert loaded("-c", "import torch", cwd=tmp_path) == {"torch"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["rec_experiments", "--help"],
        ["rec_experiments", "-m", "sweep=fig3", *FEW],  # all of it is finished
        ["rec_experiments", "sweeps", "list", "fig3", *FEW],
        ["rec_experiments", "sweeps", "status", "fig3", *FEW],
        ["rec_experiments", "figures", "fig3", *FEW],
        pytest.param(["rec_experiments", "claims", *FEW], marks=pytest.mark.long),
        ["rec_experiments", "report", "figures=fig3", *FEW],
    ],
    ids=" ".join,
)
def test_no_torch_without_gradients(swept, arguments):
    assert loaded("-m", *arguments, cwd=swept).isdisjoint(HEAVY)


def test_no_torch_in_a_launcher(tmp_path):
    script = tmp_path / "launch.py"
    script.write_text(
        """
from rec_experiments.cli import command
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.config.identity import run_path
from rec_experiments.sweeps import checked

def task(config):
    path = run_path(checked(config))
    RunFolder(path).set_status("done")

if __name__ == "__main__":
    command.hydra_main("config", task)
"""
    )
    arguments = ("-m", "seed=0,1", f"output_dir={tmp_path}/runs")
    assert loaded(str(script), *arguments, cwd=tmp_path) == set()
    assert len(list(tmp_path.glob("runs/*/status.json"))) == 2


def test_help_lists_groups_choices_and_values(tmp_path):
    page = command("--help", "algo=grpo", "clip.low=0.6", "clip.high=2.0", cwd=tmp_path)
    assert page.returncode == 0, page.stderr
    before, _, values = page.stdout.partition("Keys (key=value), with the defaults\n")
    groups = dict(line.split(": ") for line in before.splitlines() if ": " in line)
    for folder in schema.CONF.iterdir():
        choices = sorted(file.stem for file in folder.glob("*.yaml"))
        if choices and folder.name != "hydra":
            assert groups[folder.name].split(", ") == choices
    assert {"gsm8k", "guru", "math", "toolace"} <= {*groups["setting/paper"].split(", ")}
    assert not [group for group in groups if group.startswith(("hydra", "schema"))]
    config = OmegaConf.create(values.partition("\n--hydra-help")[0])
    assert (config.clip.low, config.clip.high) == (0.6, 2.0)
    assert (config.algo.name, config.seed) == ("GRPO", 0)
    assert "hydra" not in config


def test_help_has_the_comments_of_the_files():
    page = help.page(["algo=grpo", "dataset=gsm8k", "model=small_1m"], COMMANDS)
    values = page.partition("Keys (key=value), with the defaults\n")[2]
    flat = " ".join(re.sub(r"\n +# ", " ", values).split())
    for line in (
        "steps: 150 # gradient steps; batch l is consumed by step l, or by `updates` steps",
        "swap_every: null # batches between two swaps to the policy; null for never",
        "low: 0.2 # ε_low; null for no bound, here and below",  # of conf/clip/one_side.yaml
        "init_std: 0.04 # with transformers' 0.02 a model of this width",  # of conf/model/tiny.yaml
        "hub: openai/gsm8k # OWNER/NAME on the Hugging Face hub, or OWNER/NAME/FILE",
        "run_dir: null # this run's folder; null for one named after the experiment",
    ):
        assert line in flat
    shown = OmegaConf.create(values.partition("\n--hydra-help")[0])
    assert OmegaConf.to_container(shown) == resolve("algo=grpo", "dataset=gsm8k", "model=small_1m")
    assert max(map(len, page.splitlines()[:12] + values.splitlines()[:40])) <= WIDTH


def test_comments_of_a_key(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "# of the file\nseed: 0  # of data\nmodel:\n  width: 3   # of a layer,\n"
        "             # at least 1\n  # of nothing\n  url: a#b\n\n# of the next\nlast: 1\n"
    )
    assert help.comments_in(tmp_path / "a.yaml") == {
        "seed": "of data",
        "model.width": "of a layer, at least 1 of nothing",
    }


def test_choices_are_files():
    for group, choices in choices_by_group().items():
        assert all((schema.CONF / group / f"{choice}.yaml").is_file() for choice in choices)


def test_a_folder_that_is_gone_is_one_line(tmp_path):
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        ["sh", "-c", 'rmdir ../gone; "$0" -m rec_experiments steps=1', sys.executable],
        cwd=tmp_path / "gone", env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: the current folder has been removed")


@pytest.mark.parametrize("wrapper", [OmegaConfBaseException, RuntimeError])
def test_a_wrapped_interrupt_is_an_interrupt(wrapper, monkeypatch, capsys):
    """Python 3.11 and OmegaConf wrap a KeyboardInterrupt that reaches them in some places."""

    def dispatch(words):
        with one_line_errors():
            try:
                raise KeyboardInterrupt
            except KeyboardInterrupt as error:
                raise wrapper("defaults: no such key") from error

    monkeypatch.setattr(main, "dispatch", dispatch)
    with pytest.raises(SystemExit, match="130"):
        main.main()
    assert capsys.readouterr().err == "interrupted\n"
