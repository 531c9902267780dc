"""Where a run came from: enough to run it again, or to see why that is not possible."""

import json
import os
import platform
import sys
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rec_experiments.config import plugins
from rec_experiments.runs import checkout, code

PACKAGES = (
    "rec_experiments", "torch", "transformers", "hydra-core", "omegaconf", "datasets",
    "math-verify", "numpy", "vllm", "wandb", "submitit",
)  # fmt: skip

SOURCE = "source.json"  # beside a copy of the package: the commit and the diff it was copied from


# What is kept of every start of a run; of the newest one provenance.json has all.
OF_A_START = (
    "time", "command", "commit", "diff", "left_out", "copy", "code", "device", "cpu_capability",
    "ranks", "shared_draws",
)  # fmt: skip


def collect(config: dict[str, Any]) -> dict[str, Any]:
    """Commit, uncommitted diff, code, package versions, device and command of this process.

    config: the resolved configuration of its run. cpu_capability: the instructions that torch
    uses; with others it rounds otherwise, and so it does with another number of ranks.
    shared_draws: what the native sampler drew from the initial weights may have come from another
    run of the sweep, and time/rollout of those batches says nothing.
    """
    import torch

    from rec_experiments.samplers import shared

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
        "ranks": config.get("ranks"),
        "shared_draws": bool(os.environ.get(shared.FOLDER)),
        "versions": {name: _version(name) for name in PACKAGES}
        | {package.name: package.version for package in plugins.packages()},
    }


def after(origin: dict[str, Any], now: dict[str, Any], from_step: int) -> dict[str, Any]:
    """Provenance of a run that had `origin`, {} for none, and starts now after `from_step`."""
    start = {key: value for key, value in now.items() if key in OF_A_START}
    return {**now, "starts": [*code.starts(origin), {**start, "from_step": from_step}]}


def remarks(origin: dict[str, Any]) -> list[str]:
    """What a person should know of a run's newest start."""
    *before, now = code.starts(origin)
    lines = []
    if now.get("left_out"):
        lines.append(f"not in provenance.json, since it looks secret: {', '.join(now['left_out'])}")
    was, here = _changed(before, now, "cpu_capability")
    if was != here:
        lines.append(
            f"begun with {was} instructions and goes on with {here}, which round differently: the "
            "result is not that of one machine, bit for bit (ATEN_CPU_CAPABILITY chooses)"
        )
    was, here = _changed(before, now, "ranks")
    if was != here:
        lines.append(
            f"begun with ranks={was} and goes on with ranks={here}, which rounds differently: the "
            "result is not that of one number of ranks, bit for bit"
        )
    return lines


def _changed(before: list[Any], now: dict[str, Any], key: str) -> tuple[Any, Any]:
    """A value of the starts before and of this one; None for both if one is not known, or nothing
    is left of what was computed with the other."""
    known = [start[key] for start in before if start.get(key)]
    if not (now["from_step"] and known and now.get(key)):
        return None, None
    return known[-1], now[key]


def source() -> dict[str, Any]:
    """Commit and uncommitted diff of the running code; copy: its folder if it is a copy."""
    copied = checkout.PARENT / SOURCE
    if copied.exists():
        return {**json.loads(copied.read_text()), "copy": str(checkout.PARENT)}
    return checkout.state()


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
