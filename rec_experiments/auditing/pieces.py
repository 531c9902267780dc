"""The pieces of losses with the values of their files in conf, without a composed configuration."""

import functools
import importlib
from typing import Any

import yaml

from rec_experiments.common.pieces import TARGET
from rec_experiments.config.plugins import CONF


@functools.cache
def choices(group: str) -> dict[str, Any]:
    """The pieces of a group, such as `clip`, by the names of their files."""
    return {file.stem: _piece(group, file.stem) for file in sorted((CONF / group).glob("*.yaml"))}


def _piece(group: str, name: str) -> Any:
    values = _values(group, name)
    module, _, cls = values.pop(TARGET).rpartition(".")
    return getattr(importlib.import_module(module), cls)(**values)


def _values(group: str, name: str) -> dict[str, Any]:
    """Of a file, over those of the files that its list of defaults names."""
    own = yaml.safe_load((CONF / group / f"{name}.yaml").read_text(encoding="utf-8"))
    found: dict[str, Any] = {}
    for base in own.pop("defaults", []):
        if base != "_self_":
            found |= _values(group, base)
    return found | own
