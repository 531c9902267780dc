"""The command line: `python -m rec_experiments [group=choice] [key=value] …`."""

import atexit
import contextlib
import os
import sys
from collections.abc import Iterator

from omegaconf import DictConfig

from rec_experiments import distributed
from rec_experiments.cli import streams
from rec_experiments.cli.command import hydra_main, refuse
from rec_experiments.config import schema
from rec_experiments.config.experiment import Experiment
from rec_experiments.errors import UserError
from rec_experiments.garbage import none_collected, old_objects_at_rest


def main() -> None:
    """Entry point of `python -m rec_experiments`, alone or as one of the ranks of torchrun."""
    try:
        distributed.join()
    except UserError as error:
        refuse(error)
    with _ended_as_a_rank(), streams.unfailing():
        hydra_main("config", start)
        distributed.leave()


def start(config: DictConfig) -> None:
    """Run the experiment of a composed configuration, as one of the ranks that share it."""
    experiment = schema.build(config, Experiment)
    with none_collected():
        from rec_experiments.runs.run import run  # torch and transformers load only for a real run

    with old_objects_at_rest():
        run(experiment, distributed.current())


@contextlib.contextmanager
def _ended_as_a_rank() -> Iterator[None]:
    """One of several ranks ends its process here, without taking the interpreter down.

    gloo's threads outlive their group. One that lets go of a tensor while the interpreter is taken
    down aborts the process, and a run that went well would end as one that failed.
    """
    code: str | int = 0
    try:
        yield
    except SystemExit as end:
        if distributed.current().size == 1:
            raise
        code = end.code or 0
    if distributed.current().size > 1:
        atexit._run_exitfuncs()  # what others have left to do at the end
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code if isinstance(code, int) else 1)
