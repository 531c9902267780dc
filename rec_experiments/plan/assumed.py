"""What a plan takes for granted."""

import functools
from pathlib import Path
from typing import Any

import yaml


@functools.cache
def assumptions() -> dict[str, Any]:
    """assumptions.yaml."""
    file = Path(__file__).with_name("assumptions.yaml")
    found: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return found
