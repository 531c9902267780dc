"""`python -m rec_experiments tune`."""

from rec_experiments.analysis.tuning import main

__all__ = ["main"]
