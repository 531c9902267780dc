"""Whether a verifier accepts the gold solutions of its data set: what a reward is worth at best."""

from dataclasses import dataclass

from rec_experiments.rewards.judge import Judge
from rec_experiments.types import Problem, Task


@dataclass(frozen=True, slots=True)
class Report:
    """accepted of total gold solutions score accuracy 1; failures: the others, in order."""

    accepted: int
    total: int
    failures: list[Problem]


def check_gold(problems: list[Problem], judge: Judge) -> list[Problem]:
    """The problems whose gold solution the verifier rejects."""
    verdicts = judge([(problem.solution, problem.answer) for problem in problems])
    return [p for p, verdict in zip(problems, verdicts, strict=True) if verdict.accuracy != 1]


def report(task: Task, judge: Judge) -> Report:
    """Check every training and evaluation problem of a task."""
    train, evaluation = task.load()
    problems = train + evaluation
    failures = check_gold(problems, judge)
    return Report(len(problems) - len(failures), len(problems), failures)
