"""Off-policy reinforcement learning of language models: arXiv 2509.24203 as an executable paper."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rec_experiments.api import algorithm

__all__ = ["algorithm"]


def __getattr__(name: str) -> Any:
    """Load the API when it is first asked for: a command line need not pay for it."""
    if name in __all__:
        return getattr(import_module("rec_experiments.api"), name)
    raise AttributeError(f"module 'rec_experiments' has no attribute {name!r}")
