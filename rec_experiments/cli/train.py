"""A run: `python -m rec_experiments [group=choice] [key=value] …`."""

import contextlib
import os
import sys
from collections.abc import Iterator

from omegaconf import DictConfig

from rec_experiments.cli import command
from rec_experiments.cli.command import one_line_errors
from rec_experiments.common import distributed
from rec_experiments.config import schema
from rec_experiments.config.experiment import Experiment
from rec_experiments.runs.display import report_finished


def main() -> None:
    """Run what sys.argv says, alone or as one of the ranks of torchrun."""
    with as_rank():
        command.execute(sys.argv[1:], start)


@contextlib.contextmanager
def as_rank() -> Iterator[None]:
    """Join the other ranks that torchrun has started, and leave them at the end."""
    if distributed.started_by_torchrun():  # joined ranks report a mistake once
        with one_line_errors():
            distributed.join()
    with _exit_of_a_rank():
        yield
        distributed.leave()


def start(config: DictConfig) -> None:
    """Run the experiment of a composed configuration, as one of the ranks that share it."""
    experiment = schema.build(config, Experiment)
    distributed.check_ranks(experiment.ranks, distributed.current(), sys.argv[1:])
    distributed.join()  # after the check: ranks that do not exist are waited for
    if report_finished(experiment, distributed.current()):
        return
    from rec_experiments.runs.run import run  # imports torch and transformers, which takes seconds

    run(experiment, distributed.current())


@contextlib.contextmanager
def _exit_of_a_rank() -> Iterator[None]:
    """Exit one of several ranks without tearing down the interpreter: gloo's threads outlive their
    process group, and can abort the process if they release a tensor during the teardown."""
    code: str | int = 0
    try:
        yield
    except SystemExit as end:
        if distributed.current().store is None:
            raise
        code = end.code or 0
    if distributed.current().store is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)
