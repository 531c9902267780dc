"""Estimates what a run needs before it starts: memory of each phase on each GPU and on the host,
operations, and the time of a gradient step, on GPUs of the assumed kind. The exit code is 2 if the
run does not fit. Nothing is downloaded, and no GPU is needed.

The phases: start loads the models; sample draws responses (draw, on a GPU that does nothing else)
and gives the sampler new weights; train is the passes of a gradient step, and step the optimizer's;
save and resume write and read a checkpoint."""

import math
from collections.abc import Iterable
from typing import Annotated

from cyclopts import Parameter

from rec_experiments.cli.parser import overrides
from rec_experiments.common.errors import UserError
from rec_experiments.plan import ASSUMPTIONS, assumptions

# Amounts that are set aside, which may be 0.
RESERVES = {
    "margin_gb", "context_gb", "nccl_gb", "fragmentation", "engine_gb", "asleep_gb", "process_gb",
    "padding", "step_overhead_ms",
}  # fmt: skip
LENGTHS = {"prompt_tokens", "response_tokens", "stragglers"}  # of at least 1


def main(
    *words: Annotated[
        str,
        overrides(
            "of a run: setting=paper/guru gpus=8x80gb micro_batch_tokens=8192 …; and assumptions, "
            f"which {ASSUMPTIONS.name} explains: "
            + " ".join(f"{key}={value:g}" for key, value in assumptions()["values"].items())
        ),
    ],
    gpu: Annotated[str, Parameter(help=f"one of {', '.join(assumptions()['gpus'])}")] = next(
        iter(assumptions()["gpus"])
    ),
) -> None:
    """Raises UserError for an unknown GPU and for a run that does not fit."""
    from rec_experiments.plan import budget, report  # imports torch
    from rec_experiments.runs.api import Experiment

    given = assumptions()
    if gpu not in given["gpus"]:
        raise UserError(f"--gpu={gpu}: must be one of {', '.join(given['gpus'])}")
    assume = dict(word.split("=", 1) for word in words if word.split("=")[0] in given["values"])
    of_run = [word for word in words if word.split("=")[0] not in given["values"]]
    values = assumed(of_run) | {key: number(key, text) for key, text in assume.items()}
    found = budget.plan(Experiment.compose(*of_run).settings, gpu, values)
    print(*report.report(found, gpu, values), sep="\n")
    if not found.fits:
        raise UserError(report.refusal(found, gpu))


def assumed(overrides: Iterable[str]) -> dict[str, float]:
    """The values of assumptions.yaml, with the length of the setting's responses."""
    given = assumptions()
    chosen = dict(override.partition("=")[::2] for override in overrides).get("setting")
    usual = given["values"]["response_tokens"]
    return given["values"] | {"response_tokens": given["response_tokens"].get(chosen, usual)}


def number(key: str, text: str) -> float:
    """The value of an assumption. Raises UserError if it is out of range."""
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
