"""Shows the runs of some folders or of a sweep as a table: state, accuracy, staleness, clipped
share, speed, and an alarm when a collapse may be coming. It refreshes until Ctrl-C, or until no run
is active."""

import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from rec_experiments.analysis import watch
from rec_experiments.cli.parser import Runs, names_and_overrides, number, path
from rec_experiments.common.errors import UserError
from rec_experiments.sweeps.jobs import Job
from rec_experiments.sweeps.manifest import launched, output_folder

EVERY = 2.0  # seconds between two refreshes


def main(
    *words: Annotated[
        str,
        Parameter(
            "RUN",
            help="run folders, or folders that contain some; with --sweep KEY=VALUE, which selects "
            f"runs; by default {output_folder()}",
        ),
    ],
    sweep: Annotated[
        str | None, Parameter(help="the name of a sweep, for its runs in place of folders")
    ] = None,
    runs: Runs = None,
    every: Annotated[float, number("seconds between two refreshes", 0.1, 3600)] = EVERY,
    once: Annotated[
        bool, Parameter(help="print once and end, as always if the output is not a terminal")
    ] = False,
) -> None:
    """Exits with 128 + SIGINT after Ctrl-C."""
    names, overrides = names_and_overrides(words)
    if sweep:
        for place in names:
            raise UserError(f"{place}: not allowed with --sweep {sweep}; name folders or a sweep")
        look = _of_sweep(sweep, runs, overrides)
    else:
        for key in (*(["--runs"] if runs else []), *overrides):
            raise UserError(f"{key}: selects runs of a sweep; name one, as in --sweep fig3")
        look = _of_folders([*map(path, names)] or [output_folder()])
    try:
        watch.watch(look, every, once, Console(highlight=False))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _of_folders(named: list[Path]) -> watch.Look:
    for place in named:
        if not place.is_dir():
            raise UserError(f"{place}: no such folder; name run folders, or --sweep NAME")
    return lambda: watch.lines(watch.jobs_in(named))


def _of_sweep(name: str, places: list[Path] | None, overrides: list[str]) -> watch.Look:
    """places: where to look for the run folders, instead of where the sweep writes them."""
    jobs = launched(name, overrides)

    def look() -> list[watch.Line]:
        found = [_placed(job, places) for job in jobs] if places else jobs
        return watch.lines(found)

    return look


def _placed(job: Job, places: list[Path]) -> Job:
    """The job with the first of these folders that has its run, or the last one."""
    paths = [place / job.path.name for place in places]
    return replace(job, path=next(filter(Path.exists, paths), paths[-1]))
