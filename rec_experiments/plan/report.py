"""A plan as lines for people, and what would fit where a run does not."""

from rec_experiments.errors import UserError
from rec_experiments.plan.budget import DRAWS, GB, HOST, TRAINS, Plan, plan, what_fits
from rec_experiments.runs.api import Experiment as Composed

HEADINGS = {
    TRAINS: "each GPU that trains",
    DRAWS: "each GPU that draws",
    HOST: "host, all together",
}


def run(overrides: list[str], gpu: str, values: dict[str, float]) -> None:
    """Print the plan of a run. Raises UserError if the run does not fit, with a layout that does.

    gpu: a name in assumptions.yaml. values: the other assumptions, by name.
    """
    experiment = Composed.compose(*overrides).settings
    found = plan(experiment, gpu, values)
    print(*report(found, gpu, values), sep="\n")
    if found.fits:
        return
    place, phase, share = found.worst()
    limit = found.limits[place] / GB
    other = what_fits(overrides, gpu, values, experiment)
    raise UserError(
        f"{phase}: needs {share * limit:.1f} GB on {HEADINGS[place].removesuffix(', all together')}"
        f", where {limit:.1f} GB may be used; "
        + (f"what fits is {other}" if other else "none of the layouts of conf/gpus fits")
    )


def report(found: Plan, gpu: str, values: dict[str, float]) -> list[str]:
    """Lines for people."""
    experiment, cost = found.experiment, found.cost
    lines = [
        f"{experiment.model.describe()}: {found.parameters / 1e9:.2f} G parameters",
        f"{found.gpus} x {gpu}: {experiment.ranks} train, {experiment.pipeline.describe()}",
        "",
    ]
    for place, phases in found.memory.items():
        lines.append(f"{HEADINGS[place]}, at most {found.limits[place] / GB:.0f} GB")
        for phase, used in phases.items():
            mark = "" if used <= found.limits[place] else "   does not fit"
            lines.append(f"  {phase:8} {used / GB:8.1f} GB{mark}")
    flat = ", ".join(f"{name} {value:g}" for name, value in values.items())
    seconds = cost.seconds
    lines += [
        "",
        f"a gradient step: {cost.tokens / 1e3:.0f} k tokens, "
        f"{cost.trained / 1e15:.2f} P operations",
        "  " + ", ".join(f"{name} {seconds[name]:.1f} s" for name in ("draw", "push", "train")),
        f"  together {seconds['step']:.1f} s; {experiment.steps} steps "
        f"{experiment.steps * seconds['step'] / 3600:.1f} h, without evaluations",
        f"  a checkpoint {seconds['save']:.0f} s",
        f"assumed, not measured: {flat}",
    ]
    if getattr(experiment.model, "compile_layers", False):
        lines.append("model.compile_layers=true: counted as layers that are not compiled")
    return lines
