"""A plan as lines for people, and what would fit where a run does not."""

import math

from rec_experiments.cli import command
from rec_experiments.errors import UserError
from rec_experiments.plan.assumed import assumptions
from rec_experiments.plan.budget import DRAWS, GB, HOST, TRAINS, Plan, plan, what_fits
from rec_experiments.runs.api import Experiment as Composed

# What is set aside, and may be nothing.
RESERVES = {
    "margin_gb", "context_gb", "nccl_gb", "fragmentation", "engine_gb", "asleep_gb", "process_gb",
    "padding",
}  # fmt: skip
LENGTHS = {"prompt_tokens", "response_tokens"}
HEADINGS = {
    TRAINS: "each GPU that trains",
    DRAWS: "each GPU that draws",
    HOST: "host, all together",
}


def run(arguments: list[str]) -> None:
    """Raises UserError for a wrong argument, and for a run that does not fit."""
    given = assumptions()
    line = command.parse(arguments, "gpu", *given["values"])
    line.refuse_words("key=value")
    gpu = line.values.pop("gpu", next(iter(given["gpus"])))
    if gpu not in given["gpus"]:
        raise UserError(f"gpu={gpu}: is not known; allowed: {', '.join(given['gpus'])}")
    values = given["values"] | {key: number(key, text) for key, text in line.values.items()}
    for override in line.overrides:
        if override.removeprefix("gpus=").isdigit():
            raise UserError(f"{override}: names no layout; gpus={override[5:]}x80gb is written so")
    experiment = Composed.compose(*line.overrides).settings
    found = plan(experiment, gpu, values)
    print(*report(found, gpu, values), sep="\n")
    if found.fits:
        return
    place, phase, share = found.worst()
    limit = found.limits[place] / GB
    other = what_fits(line.overrides, gpu, values, experiment)
    raise UserError(
        f"{phase}: needs {share * limit:.1f} GB on {HEADINGS[place].removesuffix(', all together')}"
        f", where {limit:.1f} GB may be used; "
        + (f"what fits is {other}" if other else "none of the layouts of conf/gpus fits")
    )


def number(key: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if key in RESERVES and value == 0:
        return value
    most = 1 if key == "padding" else math.inf
    least = 1 if key in LENGTHS else 0
    if not 0 < value < most or value < least:
        allowed = "of at least 0" if key in RESERVES else "above 0"
        allowed = "of at least 1" if key in LENGTHS else allowed
        below = "below 1" if key == "padding" else "finite"
        raise UserError(f"{key}={text}: must be a number {allowed}, and {below}")
    return value


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
