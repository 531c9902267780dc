"""Writes the model of a run and its tokenizer into a folder for transformers and vLLM."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from rec_experiments.cli.parser import number, option, path


def main(
    run: Annotated[Path, option(path, "a run folder", "RUN")],
    out: Annotated[Path, option(path, "the new folder; it must not exist", "OUT")],
    /,
    *,
    step: Annotated[
        int | None,
        number("gradient steps of the checkpoint; by default the newest", 0),
    ] = None,
    part: Annotated[
        Literal["model", "adapter"],
        Parameter(
            help="of a run with adapter=lora: the model with merged weights, or the adapter alone"
        ),
    ] = "model",
) -> None:
    from rec_experiments.runs.saved import export  # imports torch

    step = export(run, out, step, part == "adapter")
    print(f"{out}: the {part} of {run} after {step} gradient steps")
