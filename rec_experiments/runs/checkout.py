"""The git checkout that this package runs from: its commit, its changes, and its secrets.

Only a checkout that tracks this package's files counts. A package installed from a wheel may lie
inside another project's repository, whose commit and changes must not be recorded.
"""

import fnmatch
import os
import subprocess
from pathlib import Path, PurePath
from typing import Any

PARENT = Path(__file__).parents[2]  # of the package: a checkout, or a folder of PYTHONPATH
TRACKED = "rec_experiments/__init__.py"

# Lower-case name patterns of files and folders that may hold keys and passwords.
SECRET = (
    ".env", ".env.*", "*.env", ".netrc", ".pypirc", ".npmrc", "*.pem", "*.key", "*.p12", "*.pfx",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*secret*", "*credential*", "*passw*",
    "*apikey*", "*api_key*", "*token", "*tokens", "*token.txt", "*tokens.txt", "*token.json",
    "*access_token*", "*api_token*", "*auth_token*", "hf_token*", "github_token*", "wandb_token*",
)  # fmt: skip


def looks_secret(name: str) -> bool:
    """Whether a part of the path has a name that suggests keys or passwords."""
    parts = [part.lower() for part in PurePath(name).parts]
    return any(fnmatch.fnmatchcase(part, pattern) for part in parts for pattern in SECRET)


def state() -> dict[str, Any]:
    """`commit` and uncommitted `diff`, None without a checkout. `left_out`: changed files that are
    not in the diff because they look secret."""
    if not exists():
        return {"commit": None, "diff": None}
    changed = _names("diff", "--name-only", "--no-renames", "HEAD")
    secret = [name for name in changed if looks_secret(name)]
    but = [f":(exclude,top,literal){name}" for name in secret]
    plain = ("--no-ext-diff", "--no-textconv", "--no-renames")  # ignore settings that run programs
    return {
        "commit": _git("rev-parse", "HEAD"),
        "diff": _git("diff", *plain, "HEAD", "--", ".", *but),
        **({"left_out": secret} if secret else {}),
    }


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
    listed = ("ls-files", "--others", "--ignored", "--exclude-standard", "--directory")
    return {(PARENT / name).resolve() for name in _names(*listed)}


def _names(*arguments: str) -> list[str]:
    """The file names that a git command lists."""
    command, *options = arguments
    return [name for name in (_git(command, "-z", *options) or "").split("\0") if name]


def _git(*arguments: str) -> str | None:
    """Output of git in the package's folder; None if git fails or is not installed."""
    # Git hooks set variables such as GIT_DIR, which would select another repository.
    own = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    try:
        done = subprocess.run(
            ["git", *arguments],
            check=False,
            cwd=PARENT,
            env=own,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
    except OSError:  # git is not installed
        return None
    return done.stdout.rstrip("\n") if done.returncode == 0 else None
