"""Composing in a process that has other uses of Hydra: a program of its own, and threads."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import rec_experiments

HERE = Path(__file__).parents[1]
PROGRAM = """
import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

import rec_experiments
from rec_experiments.common.errors import UserError


@hydra.main(version_base="1.2", config_path="conf", config_name="mine")
def main(config: DictConfig) -> None:
    before = hydra.compose("mine", ["size=5"], return_hydra_config=True)
    print(rec_experiments.algorithm("grpo").describe().splitlines()[0])
    try:
        rec_experiments.algorithm("nosuch")
    except UserError as error:
        print(error)
    after = hydra.compose("mine", ["size=5"], return_hydra_config=True)
    assert OmegaConf.to_yaml(after) == OmegaConf.to_yaml(before)
    print(config.size, after.size, HydraConfig.get().job.name, after.hydra.job.name)
    print(hydra.version.getbase())


rec_experiments.algorithm("grpo")
main()
import hydra_plugins.own  # of the program, which Hydra finds beside it
"""


def test_a_program_with_its_own_hydra_goes_on(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text("size: 3\n")
    (tmp_path / "hydra_plugins").mkdir()
    (tmp_path / "hydra_plugins" / "own.py").touch()
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HERE.parent)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    formula, refused, names, version = done.stdout.splitlines()
    assert formula.startswith("gradient: ")
    assert refused.startswith("algo=nosuch: no such choice")
    assert (names, version) == ("3 5 program program", "1.2")


def test_threads_compose_side_by_side():
    low = [0.1 * n for n in range(8)]

    def composed(value: float) -> float:
        return rec_experiments.algorithm("grpo", f"clip.low={value}").parts.clip.low

    with ThreadPoolExecutor(len(low)) as pool:
        assert list(pool.map(composed, low)) == low
