"""Where a run came from: enough to run it again, or to see why that is not possible."""

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

PACKAGES = (
    "rec_experiments", "torch", "transformers", "hydra-core", "omegaconf", "datasets",
    "math-verify", "numpy", "vllm", "wandb", "submitit",
)  # fmt: skip


def collect() -> dict[str, Any]:
    """Commit, uncommitted diff, package versions, device and command of this process."""
    return {
        "command": [sys.executable, *sys.orig_argv[1:]],
        "commit": _git("rev-parse", "HEAD"),
        "diff": _git("diff", "HEAD"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else _cpu(),
        "threads": torch.get_num_threads(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def _git(*arguments: str) -> str | None:
    """Output of git in the package's checkout; None where there is none."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            check=False,
            cwd=Path(__file__).parent,
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
