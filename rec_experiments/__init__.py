"""Off-policy reinforcement learning of language models: arXiv 2509.24203 as an executable paper."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rec_experiments.analysis.results.table import load_runs
    from rec_experiments.auditing import audit
    from rec_experiments.config.identity import RELEASE
    from rec_experiments.config.standalone import algorithm
    from rec_experiments.runs.api import Experiment

__all__ = ["RELEASE", "Experiment", "algorithm", "audit", "load_runs"]

_PLACES = {
    "RELEASE": "config.identity",
    "Experiment": "runs.api",
    "algorithm": "config.standalone",
    "audit": "auditing",
    "load_runs": "analysis.results.table",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is used: some load torch or pandas."""
    if name in _PLACES:
        return getattr(import_module(f"rec_experiments.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'rec_experiments' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
