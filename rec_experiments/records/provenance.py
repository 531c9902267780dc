"""Where a run came from: enough to run it again, or to see why that is not possible."""

import json
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

PARENT = Path(__file__).parents[2]  # of the package
SOURCE = "source.json"  # beside a copy of the package: the commit and the diff it was copied from


def collect() -> dict[str, Any]:
    """Commit, uncommitted diff, package versions, device and command of this process."""
    return {
        "command": [sys.executable, *sys.orig_argv[1:]],
        **source(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else _cpu(),
        "threads": torch.get_num_threads(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


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
