"""Objects of this process in place of names: Python code may hand over a model, rows or a function,
and the configuration then says live:DIGEST, which no other process can look up."""

import hashlib
from typing import Any

from rec_experiments.common.errors import UserError

SCHEME = "live:"
_objects: dict[str, Any] = {}


def keep(value: Any, *content: str) -> str:
    """The name of an object that is kept until the process ends. content: texts that say what it
    holds; objects of the same content have the same name in every process."""
    name = SCHEME + hashlib.sha256("\0".join(content).encode()).hexdigest()[:12]
    _objects[name] = value
    return name


def is_live(name: object) -> bool:
    """Whether it is the name of such an object."""
    return isinstance(name, str) and name.startswith(SCHEME)


def find(name: str, key: str) -> Any:
    """The object. Raises UserError, which names the key, if this process was not given it."""
    if name not in _objects:
        raise UserError(
            f"{key}={name}: was an object of the Python process that made the run, so only Python "
            "code that passes the same object to Experiment.compose can resume or evaluate it"
        )
    return _objects[name]
