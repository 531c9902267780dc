"""What Hydra composes from overrides, kept in one file of the cache folder.

Hydra takes 0.2 to 0.4 seconds for one composition, so a figure of 400 methods and schedules would
take minutes whenever it is drawn. The result depends only on the overrides, the configuration files
and the code. The file's name has a digest of files and code; it can be deleted at any time.
"""

import contextlib
import functools
import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hydra
import omegaconf

from rec_experiments.config import plugins, schema
from rec_experiments.config.composition import files_under
from rec_experiments.files import cache_folder, write_atomic

Values = dict[str, Any]  # a composed configuration, resolved
Keep = Callable[[list[str], Callable[[], Values]], Values]

# In an override: the result depends on more than the digest covers.
VOLATILE = ("${", "searchpath")


@contextlib.contextmanager
def keeping() -> Iterator[Keep]:
    """Yields `kept(overrides, compose)`, which composes unless an earlier call did.

    New compositions are saved at the end of the block. Without a cache folder nothing is kept.
    """
    known = _read(digest())
    before = len(known)

    def kept(overrides: list[str], compose: Callable[[], Values]) -> Values:
        key = shlex.join(overrides)
        if any(word in key for word in VOLATILE):
            return compose()
        if key not in known:
            known[key] = compose()
        return known[key]

    yield kept
    if len(known) > before:
        with contextlib.suppress(OSError):
            file = _file(digest())
            file.parent.mkdir(parents=True, exist_ok=True)
            for old in file.parent.glob(_file("*").name):
                old.unlink(missing_ok=True)
            write_atomic(file, json.dumps(known).encode())


@functools.cache
def _read(version: str) -> dict[str, Values]:
    try:
        return json.loads(_file(version).read_bytes())
    except (OSError, ValueError):
        return {}


def _file(version: str) -> Path:
    return cache_folder() / f"compositions_{version}.json"


@functools.cache
def digest() -> str:
    """A digest of the configuration files, of the code with its packages, and of Hydra."""
    found = hashlib.sha256(repr((sys.version, hydra.__version__, omegaconf.__version__)).encode())
    packages = (package.folder for package in plugins.packages())
    for folder in (schema.PACKAGE, schema.CONF, *packages):
        for file in files_under(folder, ".py", ".yaml"):
            found.update(f"{file.relative_to(folder)} {file.stat().st_size}\n".encode())
            found.update(file.read_bytes())
    return found.hexdigest()[:16]
