"""A plan as text."""

from rec_experiments.plan import constants
from rec_experiments.plan.budget import DRAWS, HOST, TRAINS, Plan, layouts
from rec_experiments.plan.sampler import GB

HEADINGS = {TRAINS: "each training GPU", DRAWS: "each sampling GPU", HOST: "the host"}


def report(found: Plan, gpu: str, values: dict[str, float]) -> list[str]:
    """The lines of a plan."""
    experiment, cost = found.experiment, found.cost
    quick, slow = found.quick, found.slow
    seconds = {
        name: f"{at:.3g} s [{quick.seconds[name]:.3g}, {slow.seconds[name]:.3g}]"
        for name, at in cost.seconds.items()
    }
    lines = [
        f"{experiment.model.describe()}: {found.parameters / 1e9:.2f} G parameters",
        f"{found.gpus} x {gpu}, assumed (--gpu NAME chooses another): {experiment.ranks} train; "
        f"rollouts {experiment.pipeline.describe()}",
        "",
    ]
    for place, phases in found.memory.items():
        lines.append(f"{HEADINGS[place]}, at most {found.limits[place] / GB:.0f} GB")
        for phase, used in phases.items():
            mark = "" if used <= found.limits[place] else "   does not fit"
            lines.append(f"  {phase:8} {used / GB:8.1f} GB{mark}")
    assumed = ", ".join(f"{name} {value:g}" for name, value in values.items())
    lines += [
        "",
        f"a gradient step: {cost.tokens / 1e3:.0f} k tokens, "
        f"{cost.trained / 1e15:.2f} P operations",
        "  " + ", ".join(f"{name} {seconds[name]}" for name in ("draw", "push", "train")),
        f"  together {seconds['step']}; each engine draws {cost.rate / 1e3:.1f} k tokens/s",
        f"  a checkpoint takes {seconds['save']}",
        f"  {experiment.steps} steps take {found.hours(cost):.1f} h "
        f"[{found.hours(quick):.1f}, {found.hours(slow):.1f}], without evaluations",
        f"by these constants (--sources says where each is from): {assumed}",
    ]
    if getattr(experiment.model, "compile_layers", False):
        lines.append("model.compile_layers=true: layers are counted as if they were not compiled")
    return lines


def sources() -> list[str]:
    """The constants: usual value, ends, meaning and source of each."""
    return [
        f"{name} {each['value']:g}"
        + (f" [{each['quick']:g}, {each['slow']:g}]" if "quick" in each else "")
        + f": {each['means']}. Source: {each['source']}"
        for name, each in constants()["values"].items()
    ]


def refusal(found: Plan, gpu: str) -> str:
    """Why the plan does not fit, and what takes less."""
    place, phase, share = found.worst()
    limit = found.limits[place] / GB
    return (
        f"{phase}: needs {share * limit:.1f} GB on {HEADINGS[place]}, where {limit:.1f} GB of "
        f"{gpu} may be used; lower micro_batch_tokens, or choose a larger layout: "
        f"{', '.join(f'gpus={name}' for name in layouts())}"
    )
