"""Which figures there are: those computed and those drawn from runs."""

from rec_experiments import sweeps
from rec_experiments.figures.computed import COMPUTED


def names() -> list[str]:
    """Every figure, those of the paper in its order, then the others."""
    numbered = [name for name in COMPUTED if name.startswith("fig")] + sweeps.names()
    others = [name for name in COMPUTED if name not in numbered]
    return sorted(numbered, key=lambda name: (len(name), name)) + others
