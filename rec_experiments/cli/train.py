"""A run, or all runs of a sweep: `python -m rec_experiments [group=choice] [key=value] …`."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Annotated, Literal

from cyclopts import Parameter
from omegaconf import DictConfig, OmegaConf

from rec_experiments.analysis.figures import COMPUTED
from rec_experiments.cli.errors import one_line_errors
from rec_experiments.cli.parser import PROGRAM, overrides
from rec_experiments.common import distributed
from rec_experiments.common.errors import GOES_ON, UserError
from rec_experiments.config import schema
from rec_experiments.config.composition import composing
from rec_experiments.config.experiment import Experiment
from rec_experiments.runs.display import report_finished


def main(
    *words: Annotated[str, overrides("values and choices of the run")],
    multirun: Annotated[bool, Parameter(("--multirun", "-m"), help="make several runs")] = False,
    cfg: Annotated[
        Literal["job"] | None, Parameter(("--cfg", "-c"), help="show the experiment, run nothing")
    ] = None,
    resolve: Annotated[bool, Parameter(help="show values in place of ${KEY}")] = False,
) -> None:
    for word in words:
        if (name := word.removeprefix("sweep=")) != word and name in COMPUTED:
            raise UserError(
                f"{word}: this figure is computed without runs: {PROGRAM} figures {name}"
            )
    if resolve and not cfg:
        raise UserError("--resolve: goes with --cfg, as in --cfg job")
    if multirun and cfg:
        raise UserError("--cfg: shows one run, without -m; sweeps list NAME lists those of a sweep")
    if multirun:
        from rec_experiments.sweeps.launch import launch  # imports submitit

        try:
            launch(words, start)
        except KeyboardInterrupt:
            print(GOES_ON, file=sys.stderr)
            sys.exit(128 + signal.SIGINT)
        return
    with composing() as compose:
        config = compose("config", words)
    if cfg:
        experiment = schema.build(config, Experiment)
        print(OmegaConf.to_yaml(experiment.config() if resolve else config), end="")
    else:
        start(config)


@one_line_errors()
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
def as_rank() -> Iterator[None]:
    """Join the other ranks that torchrun has started, and leave them at the end.

    One of several ranks exits without tearing down the interpreter: gloo's threads outlive their
    process group, and can abort the process if they release a tensor during the teardown.
    """
    if distributed.started_by_torchrun():  # joined ranks report a mistake once
        with one_line_errors():
            distributed.join()
    code: str | int = 0
    try:
        yield
        distributed.leave()
    except SystemExit as end:
        if distributed.current().store is None:
            raise
        code = end.code or 0
    if distributed.current().store is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)
