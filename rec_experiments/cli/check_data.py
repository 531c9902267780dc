"""Counts the gold answers of a data set that its own verifier accepts. The exit code is 1 if it
rejects one."""

import sys
from dataclasses import dataclass
from typing import Annotated

from rec_experiments.cli.parser import PROGRAM, overrides
from rec_experiments.common.problems import Dataset, Problem
from rec_experiments.datasets.verifiers.verifier_pool import BatchVerifier, report_crashes

FAILURES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Report:
    """accepted of total gold solutions score accuracy 1; failures: the others, in order."""

    accepted: int
    total: int
    failures: list[Problem]


def main(
    *overrides: Annotated[
        str,
        overrides(
            "as on the command line of a run: dataset=NAME dataset.path=FOLDER …; "
            f"{PROGRAM} --help dataset lists data sets"
        ),
    ],
) -> None:
    from rec_experiments.runs.api import Experiment  # imports torch
    from rec_experiments.runs.prepare import verifier_for

    dataset = Experiment.compose(*overrides).settings.dataset
    found = report(dataset, verifier_for(dataset))
    print(f"{found.accepted} of {found.total} gold answers accepted")
    for problem in found.failures[:FAILURES_SHOWN]:
        question = " ".join(problem.messages[-1]["content"].split())
        print(f"rejected: answer {problem.answer!r} to {question[:100]!r}")
    if found.failures:
        sys.exit(1)


def report(dataset: Dataset, verifier: BatchVerifier) -> Report:
    """Check every training and evaluation problem of a data set."""
    train, evaluation = dataset.load()
    problems = train + evaluation
    failures = check_gold(problems, verifier)
    return Report(len(problems) - len(failures), len(problems), failures)


def check_gold(problems: list[Problem], verifier: BatchVerifier) -> list[Problem]:
    """The problems whose gold solution the verifier rejects. Raises UserError if it crashes on all
    of them."""
    results = verifier([(problem.solution, problem.answer) for problem in problems])
    report_crashes(results)
    return [p for p, result in zip(problems, results, strict=True) if result.accuracy != 1]
