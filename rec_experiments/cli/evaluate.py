"""Answers the held-out problems and prints the scores: accuracy with its 95 % interval over
problems. With the keys of the run, a checkpoint scores exactly as the run reported at that step."""

from argparse import Namespace
from math import inf

from rec_experiments.cli.parser import Parser, number_between
from rec_experiments.config import schema


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "model", metavar="RUN|MODEL",
        help="a run folder, a transformers folder, or a model's name on the hub",
    )  # fmt: skip
    parser.add_argument(
        "--step", type=number_between(0, inf), metavar="N",
        help="which checkpoint of a run; it also selects the random draws; default: the newest",
    )  # fmt: skip
    parser.add_overrides(
        "keys of the run: eval_samples=4 dataset.path=FOLDER …; a model that is not a run needs "
        "dataset=NAME, and takes other choices too (sampler=vllm_beside)"
    )


def main(args: Namespace) -> None:
    schema.register()
    from rec_experiments.runs.evaluation import evaluate  # imports torch

    found = evaluate(args.model, args.step, args.overrides)
    for name, value in found.metrics.items():
        print(f"{name:24} {value:.4f}")
    interval = f"{found.low:.4f} to {found.high:.4f}, {found.problems} problems"
    print(f"{'95 % of eval/accuracy':24} {interval}")
