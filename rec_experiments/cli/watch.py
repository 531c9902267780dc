"""`python -m rec_experiments watch`: where runs stand, again and again."""

import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from rec_experiments.analysis.regime.alarms import ALARMS, Alarm
from rec_experiments.analysis.regime.ranges import load
from rec_experiments.analysis.results.figure_data import default_folder
from rec_experiments.analysis.watch import live
from rec_experiments.analysis.watch.views import folders_in
from rec_experiments.cli import command, help
from rec_experiments.errors import UserError
from rec_experiments.runs.run_folder import CONFIG

EVERY = 2.0  # seconds between two looks


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What the command line asks for. folders: to be asked for at each look, with how many runs are
    missing."""

    folders: Callable[[], tuple[list[Path], int]]
    every: float
    once: bool
    alarms: list[Alarm]


def parse(arguments: list[str]) -> Request:
    """Raises UserError for what is not understood, or is not there."""
    line = command.parse(arguments, "sweep", "runs", "every", "once", "alarms")
    once = line.values.get("once", "false")
    if once not in ("true", "false"):
        raise UserError(f"once={once}: must be true or false")
    return Request(
        every=_seconds(line.values.get("every", str(EVERY))),
        once=once == "true",
        alarms=load(Path(line.values.get("alarms", ALARMS)), Alarm),
        folders=_of_sweep(line) if "sweep" in line.values else _of_words(line),
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600:
        raise UserError(f"every={text}: must be a number of seconds from 0.1 to 3600")
    return seconds


def _of_words(line: command.CommandLine) -> Callable[[], tuple[list[Path], int]]:
    for key in (*line.values.keys() & {"runs"}, *line.overrides):
        raise UserError(f"{key}: chooses runs of a sweep; name one, as in sweep=fig3")
    named = [Path(word) for word in line.words] or [default_folder()]
    for path in named:
        if not path.is_dir():
            raise UserError(f"{path}: no such folder; name run folders, or a sweep=NAME")
    return lambda: ([path for path in folders_in(named) if path not in named or _is_run(path)], 0)


def _is_run(path: Path) -> bool:
    return (path / CONFIG).exists()


def _of_sweep(line: command.CommandLine) -> Callable[[], tuple[list[Path], int]]:
    name = line.values["sweep"]
    for word in line.words:
        raise UserError(f"{word}: does not go with sweep={name}; name folders or a sweep")
    return live.of_sweep(name, line.runs, line.overrides)


def run(arguments: list[str]) -> None:
    """Raises UserError as `parse` does; ends with 128 + SIGINT at Ctrl-C."""
    try:
        asked = parse(arguments)
        live.watch(asked.folders, asked.alarms, asked.every, asked.once, Console(highlight=False))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def page() -> help.Page:
    return help.Page(
        command="watch",
        usage=(
            "[RUN …] [every=SECONDS] [once=true] [alarms=FILE]",
            "sweep=NAME [runs=FOLDER,…] [KEY=VALUE …]",
        ),
        about="Shows where runs stand, reading their folders: curves, throughput, staleness, "
        "clipped share, and an alarm when a collapse may be coming. It refreshes until Ctrl-C, "
        "or until no run is active any more.",
        entries={
            "RUN": f"run folders, or folders that hold some; default: {default_folder()}",
            "sweep=NAME": "the runs of a figure",
            "runs=FOLDER,…": help.RUNS,
            "every=SECONDS": f"seconds between two looks; default: {EVERY:g}",
            "once=true": "look once; default: false, but true where the output is no terminal",
            "alarms=FILE": f"FILE.yaml; default: {ALARMS.name} of this package",
            "KEY=VALUE": help.KEY,
        },
    )


def main(arguments: list[str]) -> None:
    command.plain_main(run, page(), arguments)
