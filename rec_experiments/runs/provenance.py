"""Where a run came from: enough to repeat it, or to see why that is not possible.

Only a git checkout that tracks this package's files counts. A package installed from a wheel may
lie inside another project's repository, whose commit and changes must not be recorded.
"""

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rec_experiments.common.problems import Problem
from rec_experiments.config import plugins
from rec_experiments.config.identity import RELEASE

PACKAGES = (
    "rec_experiments", "torch", "transformers", "hydra-core", "omegaconf", "datasets",
    "math-verify", "numpy", "vllm", "wandb", "submitit",
)  # fmt: skip

PARENT = Path(__file__).parents[2]  # of the package: a checkout, or a folder of PYTHONPATH
TRACKED = "rec_experiments/__init__.py"
SOURCE = "source.json"  # next to a copied package: the commit and the diff of the original

# Recorded of every start of a run; provenance.json has everything else of the newest start only.
OF_A_START = (
    "time", "command", "release", "commit", "diff", "copy", "device", "cpu_capability", "ranks",
    "data", "base", "teacher", "shared_draws",
)  # fmt: skip

# What a resumed run must find unchanged, by the key of its digest, and what to restore otherwise.
UNCHANGED = {
    "data": ("the problems of its data set", "the data"),
    "base": ("the weights beside its adapters", "the model"),
    "teacher": ("the weights of its teacher", "the teacher"),
}

# What changes rounding if it differs between two starts of a run.
ROUNDING = {
    "cpu_capability": "CPU instructions {} (ATEN_CPU_CAPABILITY selects them)",
    "ranks": "ranks={}",
}


def collect(ranks: int, digests: dict[str, str | None]) -> dict[str, Any]:
    """Release, commit, uncommitted diff, package versions, device and command of this process.

    digests: by the keys of UNCHANGED. cpu_capability: torch's instruction set; results of different
    instruction sets, or different numbers of ranks, differ by rounding. shared_draws: responses
    from the initial weights may come from another run of the same sweep, in which case time/rollout
    of those batches is meaningless.
    """
    import torch

    from rec_experiments.samplers import shared

    return {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": [sys.executable, *sys.orig_argv[1:]],
        **source(),
        "release": RELEASE,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else _cpu(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "ranks": ranks,
        **digests,
        "shared_draws": bool(os.environ.get(shared.FOLDER)),
        "versions": {name: _version(name) for name in PACKAGES}
        | {package.name: package.version for package in plugins.packages()},
    }


def source() -> dict[str, Any]:
    """`commit` and uncommitted `diff` of the running code, None without a checkout; `copy`: its
    folder, if it is a copy."""
    copied = PARENT / SOURCE
    if copied.exists():
        return {**json.loads(copied.read_text()), "copy": str(PARENT)}
    if not is_checkout():
        return {"commit": None, "diff": None}
    plain = ("--no-ext-diff", "--no-textconv", "--no-renames")  # ignore settings that run programs
    return {"commit": _git("rev-parse", "HEAD"), "diff": _git("diff", *plain, "HEAD")}


def is_checkout() -> bool:
    """Whether the repository around this package tracks the package's files."""
    top = _git("rev-parse", "--show-toplevel")
    return (
        bool(top)
        and Path(str(top)).resolve() == PARENT.resolve()
        and _git("ls-files", "--error-unmatch", TRACKED) is not None
    )


def is_dirty() -> bool:
    """Whether the checkout has uncommitted changes, including new files."""
    return is_checkout() and bool(_git("status", "--porcelain"))


def ignored() -> set[Path]:
    """Files and whole folders that git ignores in the checkout; empty without a checkout."""
    if not is_checkout():
        return set()
    listed = _git("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
    return {(PARENT / name).resolve() for name in (listed or "").split("\0") if name}


def data_digest(*sets: Sequence[Problem]) -> str:
    """A digest of the messages and answers of a run's problems, in order."""
    found = hashlib.sha256()
    for problems in sets:
        for problem in problems:
            found.update(f"{problem.messages!r} {problem.answer!r}\n".encode())
    return found.hexdigest()[:16]


def starts(origin: dict[str, Any]) -> list[dict[str, Any]]:
    """Every start of a run, oldest first. origin: the content of its provenance.json, or {}."""
    return origin.get("starts", [{"from_step": 0, **origin}] if origin else [])


def is_of_a_run(origin: dict[str, Any]) -> bool:
    """Whether its starts have the types that `after` writes."""
    found = starts(origin)
    return isinstance(found, list) and all(
        isinstance(start, dict)
        and isinstance(start.get("command", []), list)
        and type(start.get("from_step")) is int
        and (start.get("release") is None or type(start["release"]) is int)
        and (start.get("release") or 0) < 1 << 31
        for start in found
    )


def after(origin: dict[str, Any], now: dict[str, Any], from_step: int) -> dict[str, Any]:
    """provenance.json of a run that starts after `from_step`. now: of `collect`."""
    start = {key: value for key, value in now.items() if key in OF_A_START}
    return {**now, "starts": [*starts(origin), {**start, "from_step": from_step}]}


def changed(origin: dict[str, Any], now: dict[str, Any]) -> str | None:
    """The first key of UNCHANGED whose digest `now` is not that of the run's last start. A start
    without a digest, by an older release, counts as the same."""
    for key in UNCHANGED:
        known = [start[key] for start in starts(origin) if start.get(key)]
        if known and now.get(key) not in (None, known[-1]):
            return key
    return None


def other_releases(origin: dict[str, Any]) -> str:
    """The releases other than this one that computed steps of a run, oldest first, as in "release
    13"; those before 12 are not recorded. Steps that a later start repeated do not count."""
    found: list[dict[str, Any]] = []
    for start in reversed(starts(origin)):
        if not found or start["from_step"] < found[0]["from_step"]:
            found.insert(0, start)
    return " and ".join(
        "an earlier release" if release is None else f"release {release}"
        for release in dict.fromkeys(start.get("release") for start in found)
        if release != RELEASE
    )


def remarks(origin: dict[str, Any]) -> list[str]:
    """Lines for the user about a resumed run whose numbers are rounded differently from here on."""
    *before, now = starts(origin)
    lines = []
    for key, words in ROUNDING.items():
        known = [start[key] for start in before if start.get(key)]
        if now["from_step"] and known and now.get(key) not in (None, known[-1]):
            lines.append(
                f"begun with {words.format(known[-1])}, continued with {words.format(now[key])}: "
                "rounding differs, so the result is not bit-identical to that of a single start"
            )
    return lines


def _git(*arguments: str) -> str | None:
    """Output of git in the package's folder; None if git fails or is not installed."""
    # Git hooks set variables such as GIT_DIR, which would select another repository.
    own = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", *arguments]
    try:
        done = subprocess.run(command, check=False, cwd=PARENT, env=own, capture_output=True)
    except OSError:  # git is not installed
        return None
    return done.stdout.decode(errors="replace").rstrip("\n") if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    file = Path("/proc/cpuinfo")
    for line in file.read_text().splitlines() if file.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "cpu"
