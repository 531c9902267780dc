"""Estimates what a run needs before it starts: memory of each phase on each GPU and on the host,
operations, and the time of a gradient step, on GPUs of the assumed kind. The exit code is 2 if the
run does not fit. Nothing is downloaded, and no GPU is needed.

The phases: start loads the models; sample draws responses (draw, on a GPU that does nothing else)
and gives the sampler new weights; train is the passes of a gradient step, and step the optimizer's;
resume reads a checkpoint."""

import math
from collections.abc import Iterable
from typing import Annotated

from cyclopts import Parameter

from rec_experiments.cli.parser import overrides
from rec_experiments.common.errors import UserError
from rec_experiments.plan import constants, usual


def main(
    *words: Annotated[
        str,
        overrides(
            "of a run: setting=paper/guru gpus=8x80gb micro_batch_tokens=8192 …; and constants, "
            "which --sources explains: "
            + " ".join(f"{key}={value:g}" for key, value in usual().items())
        ),
    ],
    gpu: Annotated[str, Parameter(help=f"one of {', '.join(constants()['gpus'])}")] = next(
        iter(constants()["gpus"])
    ),
    sources: Annotated[
        bool, Parameter(help="print each constant's source, and nothing else")
    ] = False,
) -> None:
    """Raises UserError for an unknown GPU and for a run that does not fit."""
    from rec_experiments.plan import budget  # imports torch
    from rec_experiments.runs.api import Experiment

    given = constants()
    if sources:
        for name, each in given["values"].items():
            ends = f" [{each['quick']:g}, {each['slow']:g}]" if "quick" in each else ""
            print(f"{name} {each['value']:g}{ends}: {each['means']}. Source: {each['source']}")
        return
    if gpu not in given["gpus"]:
        raise UserError(f"--gpu={gpu}: must be one of {', '.join(given['gpus'])}")
    assume = dict(word.split("=", 1) for word in words if word.split("=")[0] in given["values"])
    of_run = [word for word in words if word.split("=")[0] not in given["values"]]
    values = assumed(of_run) | {key: number(key, text) for key, text in assume.items()}
    found = budget.plan(Experiment.compose(*of_run).settings, gpu, values)
    print(*budget.report(found, gpu, values), sep="\n")
    if not found.fits:
        raise UserError(budget.refusal(found, gpu))


def assumed(overrides: Iterable[str]) -> dict[str, float]:
    """The usual values, with the length of the setting's responses."""
    chosen = dict(override.partition("=")[::2] for override in overrides).get("setting")
    values = usual()
    length = constants()["response_tokens"].get(chosen, values["response_tokens"])
    return values | {"response_tokens": length}


def number(key: str, text: str) -> float:
    """The value of a constant. Raises UserError if it is out of range."""
    known = constants()["values"][key]
    least, below = known.get("least"), known.get("below", math.inf)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not ((value > 0 if least is None else value >= least) and value < below):
        allowed = "above 0" if least is None else f"of at least {least}"
        end = "finite" if below == math.inf else f"below {below}"
        raise UserError(f"{key}={text}: must be a number {allowed}, and {end}")
    return value
