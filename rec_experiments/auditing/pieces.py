"""The pieces of losses with the values of their files in conf, without a composed configuration."""

import functools
import importlib
from typing import Any

from rec_experiments.common.pieces import TARGET
from rec_experiments.config.plugins import CONF
from rec_experiments.config.settings import file_values


@functools.cache
def choices(group: str) -> dict[str, Any]:
    """The pieces of a group, such as `clip`, by the names of their files."""
    return {file.stem: _piece(file.stem, group) for file in sorted((CONF / group).glob("*.yaml"))}


def _piece(name: str, group: str) -> Any:
    values, _ = file_values(name, group)
    module, _, cls = values[TARGET].rpartition(".")
    named = {key: value for key, value in values.items() if key != TARGET}
    return getattr(importlib.import_module(module), cls)(**named)
