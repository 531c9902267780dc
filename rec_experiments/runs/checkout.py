"""The git checkout that this package runs from.

Only a checkout that tracks this package's files counts. A package installed from a wheel may lie
inside another project's repository, whose commit and changes must not be recorded.
"""

import os
import subprocess
from pathlib import Path

PARENT = Path(__file__).parents[2]  # of the package: a checkout, or a folder of PYTHONPATH
TRACKED = "rec_experiments/__init__.py"


def state() -> dict[str, str | None]:
    """`commit` and uncommitted `diff`, None without a checkout."""
    if not exists():
        return {"commit": None, "diff": None}
    plain = ("--no-ext-diff", "--no-textconv", "--no-renames")  # ignore settings that run programs
    return {"commit": _git("rev-parse", "HEAD"), "diff": _git("diff", *plain, "HEAD")}


def exists() -> bool:
    """Whether the repository around this package tracks the package's files."""
    top = _git("rev-parse", "--show-toplevel")
    return (
        bool(top)
        and Path(str(top)).resolve() == PARENT.resolve()
        and _git("ls-files", "--error-unmatch", TRACKED) is not None
    )


def is_dirty() -> bool:
    """Whether the checkout has uncommitted changes, including new files."""
    return exists() and bool(_git("status", "--porcelain"))


def ignored() -> set[Path]:
    """Files and whole folders that git ignores in the checkout; empty without a checkout."""
    if not exists():
        return set()
    listed = _git("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
    return {(PARENT / name).resolve() for name in (listed or "").split("\0") if name}


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
