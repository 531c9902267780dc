"""What a run needs before it starts: memory of each phase, operations and time.

The micro-batch's memory is measured on tensors without values (`memory`); the rest is counted. What
is known or assumed of devices and texts is in constants.yaml, and can be given on the command line.
"""

import functools
from pathlib import Path
from typing import Any

import yaml

CONSTANTS = Path(__file__).with_name("constants.yaml")


@functools.cache
def constants() -> dict[str, Any]:
    """constants.yaml: `gpus` by name, `values`, and `response_tokens` by setting."""
    found: dict[str, Any] = yaml.safe_load(CONSTANTS.read_text(encoding="utf-8"))
    return found


def usual() -> dict[str, float]:
    return {name: each["value"] for name, each in constants()["values"].items()}


def at(end: str, values: dict[str, float]) -> dict[str, float]:
    """The values at one end of what is uncertain, `quick` or `slow`. A value that is not the usual
    one was given, and is certain."""
    known = constants()["values"]
    return {
        name: known[name].get(end, value) if value == known[name]["value"] else value
        for name, value in values.items()
    }
