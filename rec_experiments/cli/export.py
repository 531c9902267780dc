"""Writes the model of a run and its tokenizer into a folder for transformers and vLLM."""

from argparse import Namespace
from math import inf

from rec_experiments.cli.parser import Parser, number_between, path
from rec_experiments.config import schema


def add_arguments(parser: Parser) -> None:
    parser.add_argument("run", type=path, metavar="RUN", help="a run folder")
    parser.add_argument("out", type=path, metavar="OUT", help="the new folder; it must not exist")
    parser.add_argument(
        "--step", type=number_between(0, inf), metavar="N",
        help="gradient steps of the checkpoint; default: the newest",
    )  # fmt: skip
    parser.add_argument(
        "--part", choices=["model", "adapter"], default="model", metavar="model|adapter",
        help="of a run with adapter=lora: the model with merged weights, or the adapter alone; "
        "default: %(default)s",
    )  # fmt: skip


def main(args: Namespace) -> None:
    schema.register()
    from rec_experiments.runs.export import export  # imports torch

    step = export(args.run, args.out, args.step, args.part == "adapter")
    print(f"{args.out}: the {args.part} of {args.run} after {step} gradient steps")
