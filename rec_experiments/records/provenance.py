"""Where a run came from: enough to run it again, or to see why that is not possible."""

import json
import platform
import subprocess
import sys
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rec_experiments import outside
from rec_experiments.records import code

PACKAGES = (
    "rec_experiments", "torch", "transformers", "hydra-core", "omegaconf", "datasets",
    "math-verify", "numpy", "vllm", "wandb", "submitit",
)  # fmt: skip

PARENT = Path(__file__).parents[2]  # of the package: a checkout, or a folder of PYTHONPATH
SOURCE = "source.json"  # beside a copy of the package: the commit and the diff it was copied from


# What is kept of every start of a run; of the newest one provenance.json has all.
OF_A_START = (
    "time", "command", "commit", "diff", "copy", "code", "device", "cpu_capability",
)  # fmt: skip


def collect(config: dict[str, Any]) -> dict[str, Any]:
    """Commit, uncommitted diff, code, package versions, device and command of this process.

    config: the resolved configuration of its run. cpu_capability: the instructions that torch
    uses; with others it rounds otherwise.
    """
    import torch

    return {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": [sys.executable, *sys.orig_argv[1:]],
        **source(),
        "code": code.current(config),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else _cpu(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "versions": {name: _version(name) for name in PACKAGES}
        | {package.name: package.version for package in outside.packages()},
    }


def after(origin: dict[str, Any], now: dict[str, Any], from_step: int) -> dict[str, Any]:
    """Provenance of a run that had `origin`, {} for none, and starts now after `from_step`."""
    start = {key: value for key, value in now.items() if key in OF_A_START}
    return {**now, "starts": [*code.starts(origin), {**start, "from_step": from_step}]}


def source() -> dict[str, Any]:
    """Commit and uncommitted diff of the running code; copy: its folder if it is a copy."""
    copied = PARENT / SOURCE
    if copied.exists():
        return {**json.loads(copied.read_text()), "copy": str(PARENT)}
    return {"commit": _git("rev-parse", "HEAD"), "diff": _git("diff", "HEAD")}


def is_dirty() -> bool:
    """Whether the checkout has changes that no commit holds, new files included."""
    return bool(_git("status", "--porcelain"))


def _git(*arguments: str) -> str | None:
    """Output of git in the package's checkout; None where there is none."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            check=False,
            cwd=PARENT,
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    for line in (
        Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    ):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "cpu"
