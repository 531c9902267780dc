"""Plans of the paper's settings on their layouts, made once."""

import functools

from conftest import experiment
from test_config import LAYOUTS

from rec_experiments.plan import budget
from rec_experiments.plan.assumed import assumptions


@functools.cache
def planned(name: str) -> budget.Plan:
    """name: of LAYOUTS."""
    return budget.plan(experiment(*LAYOUTS[name]), "h100-80", assumptions()["values"])


def gigabytes(found: budget.Plan) -> dict[str, dict[str, float]]:
    """By place and phase, as the golden file has them."""
    return {
        place: {phase: round(used / budget.GB, 2) for phase, used in phases.items()}
        for place, phases in found.memory.items()
    }
