"""Whether a verifier accepts the gold solutions of its data set: what a reward is worth at best."""

import sys
from dataclasses import dataclass

from omegaconf import DictConfig

from rec_experiments.cli import help
from rec_experiments.cli.command import hydra_main
from rec_experiments.config import schema
from rec_experiments.config.experiment import Experiment
from rec_experiments.datasets.verifiers.verifier_pool import BatchVerifier
from rec_experiments.types import Dataset, Problem

FAILURES_SHOWN = 5
PAGE = help.Page(
    command="check_data",
    usage=("dataset=NAME [KEY=VALUE …]",),
    about="Counts the gold answers of a data set that its own verifier accepts; the exit code is 1 "
    "if it rejects one.",
    entries={
        "dataset=NAME": "a data set; the others and their keys: python -m rec_experiments --help",
        "KEY=VALUE": "as on the command line of a run: dataset.path=FOLDER, …",
    },
)


@dataclass(frozen=True, slots=True)
class Report:
    """accepted of total gold solutions score accuracy 1; failures: the others, in order."""

    accepted: int
    total: int
    failures: list[Problem]


def check_gold(problems: list[Problem], verifier: BatchVerifier) -> list[Problem]:
    """The problems whose gold solution the verifier rejects."""
    results = verifier([(problem.solution, problem.answer) for problem in problems])
    return [p for p, result in zip(problems, results, strict=True) if result.accuracy != 1]


def report(task: Dataset, verifier: BatchVerifier) -> Report:
    """Check every training and evaluation problem of a task."""
    train, evaluation = task.load()
    problems = train + evaluation
    failures = check_gold(problems, verifier)
    return Report(len(problems) - len(failures), len(problems), failures)


def main(arguments: list[str]) -> None:
    hydra_main("config", _print_report, PAGE)


def _print_report(config: DictConfig) -> None:
    from rec_experiments.runs.prepare import verifier_for  # torch loads with it

    experiment = schema.build(config, Experiment)
    found = report(experiment.dataset, verifier_for(experiment.dataset))
    print(f"{found.accepted} of {found.total} gold answers accepted")
    for problem in found.failures[:FAILURES_SHOWN]:
        question = " ".join(problem.messages[-1]["content"].split())
        print(f"rejected: answer {problem.answer!r} to {question[:100]!r}")
    if found.failures:
        sys.exit(1)
