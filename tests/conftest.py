"""Shared: one-thread torch, a cache of warm starts for the whole session, small experiments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from rec_experiments import schema
from rec_experiments.experiment import Experiment

# An experiment of seconds: the same code path as a real one.
SMALL = (
    "steps=3",
    "batch_size=4",
    "group_size=4",
    "eval_problems=8",
    "eval_every=2",
    "checkpoint_every=1",
    "kl_every=1",
    "model.warm_start.steps=4",
    "dataset.train_problems=64",
    "dataset.eval_problems=16",
)


@pytest.fixture(scope="session", autouse=True)
def _session(tmp_path_factory):
    torch.set_num_threads(1)
    os.environ["REC_EXPERIMENTS_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    os.environ["MPLCONFIGDIR"] = str(tmp_path_factory.mktemp("matplotlib"))  # of all processes
    schema.register()


def resolve(*overrides: str) -> dict:
    """The resolved configuration, as run folders hold it."""
    with initialize_config_dir(str(schema.CONF), version_base="1.3"):
        config = compose("config", list(overrides))
    return OmegaConf.to_container(config, resolve=True, enum_to_str=True)


def experiment(*overrides: str) -> Experiment:
    with initialize_config_dir(str(schema.CONF), version_base="1.3"):
        return schema.build(compose("config", list(overrides)), Experiment)


def command(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    """`python -m rec_experiments ARGUMENTS` in a folder, as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "rec_experiments", *arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def data_folder() -> Path:
    """Real data sets, named by REC_DATA; tests that need them are skipped where it is unset."""
    if "REC_DATA" not in os.environ:
        pytest.skip("REC_DATA is not set: it names a folder with gsm8k/train.jsonl and the like")
    return Path(os.environ["REC_DATA"])
