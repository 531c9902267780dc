"""What a command loads, and what its help says.

1. A command that computes no gradient loads neither torch nor the libraries that load it.
2. The help page lists every group with its choices, and the keys with their values.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import command
from fabricated import rows_of, write_run
from omegaconf import OmegaConf

from rec_experiments import schema, sweeps
from rec_experiments.composition import choices_by_group
from rec_experiments.records import provenance

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "datasets", "wandb", "vllm")
FEW = ["sync=offline", "seed=0,1"]
# Python runs this before all else; at its end the process says what it has loaded. Those that it
# starts do not.
SPY = f"""
import atexit, os, sys
def tell(place):
    with open(place, "w") as file:
        file.write(" ".join(sorted({set(HEAVY)!r} & sys.modules.keys())))
if "LOADED" in os.environ:
    atexit.register(tell, os.environ.pop("LOADED"))
"""


def loaded(*arguments, cwd: Path) -> set[str]:
    """The heavy libraries that `python ARGUMENTS`, which must succeed, has loaded at its end."""
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
        (job.path / "provenance.json").write_text(json.dumps(provenance.collect(job.config)))
    return folder


def test_the_spy_sees_what_is_loaded(tmp_path):
    assert loaded("-c", "import torch", cwd=tmp_path) == {"torch"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["rec_experiments", "--help"],
        ["rec_experiments", "--cfg", "job", "--resolve"],
        ["rec_experiments", "-m", "sweep=fig3", *FEW],  # all of it is finished
        ["rec_experiments.sweeps", "--help"],
        ["rec_experiments.sweeps", "list", "fig3", *FEW],
        ["rec_experiments.sweeps", "status", "fig3", *FEW],
        ["rec_experiments.figures", "fig3", *FEW],
        ["rec_experiments.figures", "--help"],
        ["rec_experiments.claims", *FEW],
        ["rec_experiments.report", "figures=fig3", *FEW],
    ],
    ids=" ".join,
)
def test_a_command_without_gradients_does_not_load_torch(swept, arguments):
    assert loaded("-m", *arguments, cwd=swept) == set()


def test_a_process_that_only_launches_jobs_does_not_load_torch(tmp_path):
    script = tmp_path / "launch.py"
    script.write_text(
        """
from rec_experiments import command
from rec_experiments.records.run_folder import RunFolder
from rec_experiments.sweeps import resolve

def task(config):
    _, path = resolve(config)
    RunFolder(path).set_status("done")

if __name__ == "__main__":
    command.hydra_main("config", task)
"""
    )
    arguments = ("-m", "seed=0,1", f"output_dir={tmp_path}/runs")
    assert loaded(str(script), *arguments, cwd=tmp_path) == set()
    assert len(list(tmp_path.glob("runs/*/status.json"))) == 2


def test_help_lists_groups_choices_and_values(tmp_path):
    page = command("--help", "algo=grpo", "clip=wide", cwd=tmp_path)
    assert page.returncode == 0, page.stderr
    before, _, values = page.stdout.partition("Keys (key=value), with the defaults\n")
    groups = dict(line.split(": ") for line in before.splitlines() if ": " in line)
    for folder in schema.CONF.iterdir():
        choices = sorted(file.stem for file in folder.glob("*.yaml"))
        if choices and folder.name != "hydra":
            assert groups[folder.name].split(", ") == choices
    assert groups["setting/paper"].split(", ") == ["common", "gsm8k", "guru", "math", "toolace"]
    assert not [group for group in groups if group.startswith(("hydra", "schema"))]
    config = OmegaConf.create(values.partition("\n--hydra-help")[0])
    assert (config.clip.low, config.clip.high) == (0.6, 2.0)
    assert (config.algo.name, config.seed) == ("GRPO", 0)
    assert "hydra" not in config


def test_every_listed_choice_is_a_file_of_its_group():
    for group, choices in choices_by_group().items():
        assert all((schema.CONF / group / f"{choice}.yaml").is_file() for choice in choices)
