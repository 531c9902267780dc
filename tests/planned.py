"""Plans of the paper's settings on their layouts, made once."""

import functools

from conftest import experiment

from rec_experiments.plan import budget, usual

# The paper's settings as they are laid out on GPUs of 80 GB; where a model does not fit, no file.
LAYOUTS = {
    f"{setting}_{gpus}": (f"setting=paper/{setting}", f"gpus={gpus}")
    for setting, layouts in {
        "gsm8k": ("1x80gb", "2x80gb", "8x80gb"),
        "toolace": ("1x80gb", "2x80gb", "8x80gb"),
        "guru": ("8x80gb",),
        "math": ("8x80gb",),
    }.items()
    for gpus in layouts
}


@functools.cache
def planned(name: str) -> budget.Plan:
    """name: of LAYOUTS."""
    return budget.plan(experiment(*LAYOUTS[name]), "h100-80", usual())


def gigabytes(found: budget.Plan) -> dict[str, dict[str, float]]:
    """By place and phase, as the golden file has them."""
    return {
        place: {phase: round(used / 1e9, 2) for phase, used in phases.items()}
        for place, phases in found.memory.items()
    }
