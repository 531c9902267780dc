"""Range checks of the pieces' parameters. Each raises ValueError with `name=value: must be …`."""

import math

from rec_experiments.types import Piece


def check_at_least(least: float, piece: Piece, *names: str) -> None:
    """The fields are finite and at least `least`; null passes."""
    for name in names:
        value = getattr(piece, name)
        if value is not None and not least <= value < math.inf:
            raise ValueError(f"{name}={value}: must be at least {least:g}, and finite")


def check_greater(bound: float, piece: Piece, *names: str) -> None:
    """The fields are finite and greater than `bound`; null passes."""
    for name in names:
        value = getattr(piece, name)
        if value is not None and not bound < value < math.inf:
            raise ValueError(f"{name}={value}: must be greater than {bound:g}, and finite")


def check_between(low: float, high: float, piece: Piece, *names: str) -> None:
    """The fields are between `low` and `high`, both included; null passes."""
    for name in names:
        value = getattr(piece, name)
        if value is not None and not low <= value <= high:
            raise ValueError(f"{name}={value}: must be between {low:g} and {high:g}")


def check_one_of(allowed: tuple[str, ...], piece: Piece, *names: str) -> None:
    """The fields are among the allowed words."""
    for name in names:
        value = getattr(piece, name)
        if value not in allowed:
            raise ValueError(f"{name}={value}: must be one of {', '.join(allowed)}")
