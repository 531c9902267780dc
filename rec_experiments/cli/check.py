"""Says before any training whether a model can learn from its data: which of the data set's own
answers the verifier accepts, how the model's first responses are judged, and which learning rate
to begin with. The exit code is 1 if they give no gradient; the last line says what to try."""

import sys
from typing import Annotated

from cyclopts import Parameter

from rec_experiments.cli.parser import PROGRAM, overrides
from rec_experiments.common.errors import printable
from rec_experiments.common.problems import Problem
from rec_experiments.datasets.verifiers.verifier_pool import BatchVerifier, report_crashes

FAILURES_SHOWN = 5


def main(
    *overrides: Annotated[
        str,
        overrides(
            "as on the command line of a run: model=pretrained model.path=FOLDER dataset=NAME "
            f"dataset.path=FOLDER …; {PROGRAM} --help dataset lists data sets"
        ),
    ],
    answers: Annotated[
        bool,
        Parameter(
            help="check the data set's own answers only, without a model; the exit code is 1 if "
            "one is rejected"
        ),
    ] = False,
) -> None:
    from rec_experiments.runs.api import Experiment  # imports torch
    from rec_experiments.runs.learning_signal import try_first_batch
    from rec_experiments.runs.prepare import verifier_for

    settings = Experiment.compose(*overrides).settings
    train, evaluation = settings.dataset.load()
    problems = [*train, *evaluation]
    failures = check_gold(problems, verifier_for(settings.dataset))
    print(f"answers     {len(problems) - len(failures)} of {len(problems)} gold answers accepted")
    for problem in failures[:FAILURES_SHOWN]:
        question = " ".join(problem.messages[-1]["content"].split())
        print(printable(f"rejected    answer {problem.answer!r} to {question[:100]!r}"))
    if answers:
        sys.exit(bool(failures))
    trial = try_first_batch(settings, lambda line: print(printable(line)))
    for line in trial.lines():
        print(printable(line))
    if not trial.signal.varied:
        sys.exit(1)
    words = " ".join([*overrides, *trial.missing_rate(overrides)])
    print(f"next        {PROGRAM} {words}")


def check_gold(problems: list[Problem], verifier: BatchVerifier) -> list[Problem]:
    """The problems whose gold solution the verifier rejects. Raises UserError if it crashes on all
    of them."""
    results = verifier([(problem.solution, problem.answer) for problem in problems])
    report_crashes(results)
    return [p for p, result in zip(problems, results, strict=True) if result.accuracy != 1]
