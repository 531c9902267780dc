"""What overrides compose, as plain values that later processes need not compose again.

Composing takes Hydra about a fifth of a second. What it gives follows from the overrides, the
configuration files and the code, unless a value refers to something else; so it is kept in the
cache folder under a digest of all these.
"""

import functools
import json
import platform
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any

import hydra
import omegaconf
from omegaconf import DictConfig, OmegaConf

from rec_experiments.cache import Kept, digest_of_files
from rec_experiments.config import plugins, schema

# Plain values if none refers to another; otherwise the configuration, which resolves them.
Composed = dict[str, Any] | DictConfig

REFERENCE = re.compile(r"\$\{([^${}]*)")


def settled(config: DictConfig, within: tuple[str, ...] = ()) -> Composed:
    """Its plain values, if every reference between them is to a key that begins as in `within`."""
    written = json.dumps(OmegaConf.to_container(config, enum_to_str=True))
    if all(key.startswith(within) for key in REFERENCE.findall(written)):
        return resolved(config)
    return config


def resolved(composed: Composed) -> dict[str, Any]:
    """All values, as they are now."""
    if isinstance(composed, DictConfig):
        return OmegaConf.to_container(composed, resolve=True, enum_to_str=True)  # type: ignore[return-value]
    return composed


def kept(overrides: Sequence[str], compose: Callable[[], Composed]) -> Composed:
    """What `compose` gives for the overrides, or gave before."""
    values = _values(digest_of_code())
    key = shlex.join(overrides)
    if key not in values.values:
        composed = compose()
        if isinstance(composed, DictConfig) or "searchpath" in key:  # files that _digest leaves out
            return composed
        values.add(key, composed)
    return values.values[key]


@functools.cache
def _values(version: str) -> Kept:
    return Kept("composed", version)


@functools.cache
def digest_of_code() -> str:
    """Of the configuration files, of all code that gives them types and ranges, and of Hydra."""
    versions = (platform.python_version(), hydra.__version__, omegaconf.__version__)
    packages = [package.module.__path__[0] for package in plugins.packages()]
    return digest_of_files((schema.PACKAGE, schema.CONF, *packages), " ".join(versions))
