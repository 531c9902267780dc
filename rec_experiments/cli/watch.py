"""Shows the state of runs from their folders: curves, throughput, staleness, clipped fraction, and
an alarm when a collapse may be coming. It refreshes until Ctrl-C, or until no run is active."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from rec_experiments.analysis.regime.alarms import package_alarms
from rec_experiments.analysis.results.begun import default_folder
from rec_experiments.analysis.watch import live
from rec_experiments.analysis.watch.views import folders_in
from rec_experiments.cli.parser import Runs, names_and_overrides, number_between, option, path
from rec_experiments.errors import UserError
from rec_experiments.runs.run_folder import CONFIG

EVERY = 2.0  # seconds between two refreshes
Folders = Callable[[], tuple[list[Path], int]]  # run folders now, and how many runs have not begun


def main(
    *words: Annotated[
        str,
        Parameter(
            "RUN",
            help="run folders, or folders that contain some; with --sweep KEY=VALUE, which selects "
            f"runs; by default {default_folder()}",
        ),
    ],
    sweep: Annotated[
        str | None, Parameter(help="the name of a sweep, for its runs in place of folders")
    ] = None,
    runs: Runs = None,
    every: Annotated[
        float, option(number_between(0.1, 3600, float), "seconds between two refreshes")
    ] = EVERY,
    once: Annotated[
        bool, Parameter(help="print once and end, as always if the output is not a terminal")
    ] = False,
) -> None:
    """Exits with 128 + SIGINT after Ctrl-C."""
    names, overrides = names_and_overrides(words)
    if sweep:
        for place in names:
            raise UserError(f"{place}: not allowed with --sweep {sweep}; name folders or a sweep")
        folders = live.of_sweep(sweep, runs, overrides)
    else:
        for key in (*(["--runs"] if runs else []), *overrides):
            raise UserError(f"{key}: selects runs of a sweep; name one, as in --sweep fig3")
        folders = _of_folders([*map(path, names)] or [default_folder()])
    try:
        live.watch(folders, package_alarms(), every, once, Console(highlight=False))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _of_folders(named: list[Path]) -> Folders:
    for place in named:
        if not place.is_dir():
            raise UserError(f"{place}: no such folder; name run folders, or --sweep NAME")

    def found() -> tuple[list[Path], int]:
        places = folders_in(named)
        return [place for place in places if place not in named or (place / CONFIG).exists()], 0

    if not found()[0]:
        raise UserError(
            f"{', '.join(map(str, named))}: no run there, nor in a folder directly below; a run "
            f"folder has a {CONFIG}"
        )
    return found
