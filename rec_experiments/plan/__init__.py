"""What a run needs before it starts: memory of each phase, operations and time.

The micro-batch's memory is measured on tensors without values (`memory`); the rest is counted. What
is assumed of devices and texts is in assumptions.yaml, and can be given on the command line.
"""

import functools
from pathlib import Path
from typing import Any

import yaml

ASSUMPTIONS = Path(__file__).with_name("assumptions.yaml")


@functools.cache
def assumptions() -> dict[str, Any]:
    """assumptions.yaml: `gpus` by name, and `values`."""
    found: dict[str, Any] = yaml.safe_load(ASSUMPTIONS.read_text(encoding="utf-8"))
    return found
