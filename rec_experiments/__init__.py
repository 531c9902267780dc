"""Off-policy reinforcement learning of language models: arXiv 2509.24203 as an executable paper."""

from importlib import import_module

TYPE_CHECKING = False  # typing's own takes as long to import as Python to start
if TYPE_CHECKING:
    from rec_experiments.api import algorithm
    from rec_experiments.composed import Experiment
    from rec_experiments.results.frames import load_runs

__all__ = ["Experiment", "algorithm", "load_runs"]

_PLACES = {"Experiment": "composed", "algorithm": "api", "load_runs": "results.frames"}


def __getattr__(name: str) -> object:
    """Load what is asked for when it is asked for: a command line need not pay for it."""
    if name in _PLACES:
        return getattr(import_module(f"rec_experiments.{_PLACES[name]}"), name)
    raise AttributeError(f"module 'rec_experiments' has no attribute {name!r}")
