"""Shows the state of runs from their folders: curves, throughput, staleness, clipped fraction, and
an alarm when a collapse may be coming. It refreshes until Ctrl-C, or until no run is active."""

import signal
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from rec_experiments.analysis.regime.alarms import package_alarms
from rec_experiments.analysis.results.begun import default_folder
from rec_experiments.analysis.watch import live
from rec_experiments.analysis.watch.views import folders_in
from rec_experiments.cli.parser import OVERRIDES, RUNS, Parser, number_between, path, run_folders
from rec_experiments.errors import UserError
from rec_experiments.runs.run_folder import CONFIG

EVERY = 2.0  # seconds between two refreshes
Folders = Callable[[], tuple[list[Path], int]]  # run folders now, and how many runs have not begun


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "folders", nargs="*", type=path, metavar="RUN",
        help=f"run folders, or folders that contain some; default: {default_folder()}",
    )  # fmt: skip
    parser.add_argument("--sweep", metavar="NAME", help="the runs of a figure, in place of folders")
    parser.add_argument("--runs", type=run_folders, metavar="FOLDER,…", help=RUNS)
    parser.add_argument(
        "--every", type=number_between(0.1, 3600, float), default=EVERY, metavar="SECONDS",
        help="seconds between two refreshes; default: %(default)g",
    )  # fmt: skip
    parser.add_argument(
        "--once", type=_truth, default=False, metavar="true",
        help="print once and end; default: false, but true if the output is not a terminal",
    )  # fmt: skip
    parser.add_overrides(OVERRIDES)


def main(args: Namespace) -> None:
    """Exits with 128 + SIGINT after Ctrl-C."""
    folders = _of_sweep(args) if args.sweep else _of_folders(args)
    try:
        live.watch(folders, package_alarms(), args.every, args.once, Console(highlight=False))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ArgumentTypeError(f"{text}: must be true or false")
    return text == "true"


def _of_folders(args: Namespace) -> Folders:
    for key in (*(["runs"] if args.runs else []), *args.overrides):
        raise UserError(f"{key}: selects runs of a sweep; name one, as in sweep=fig3")
    named = args.folders or [default_folder()]
    for place in named:
        if not place.is_dir():
            raise UserError(f"{place}: no such folder; name run folders, or sweep=NAME")

    def found() -> tuple[list[Path], int]:
        places = folders_in(named)
        return [place for place in places if place not in named or (place / CONFIG).exists()], 0

    if not found()[0]:
        raise UserError(
            f"{', '.join(map(str, named))}: no run there, nor in a folder directly below; a run "
            f"folder has a {CONFIG}"
        )
    return found


def _of_sweep(args: Namespace) -> Folders:
    for place in args.folders:
        raise UserError(f"{place}: not allowed with sweep={args.sweep}; name folders or a sweep")
    return live.of_sweep(args.sweep, args.runs, args.overrides)
