"""What a plan takes for granted."""

import functools
from pathlib import Path
from typing import Any

import yaml


@functools.cache
def assumptions() -> dict[str, Any]:
    """assumptions.yaml."""
    found: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("assumptions.yaml").read_text())
    return found
