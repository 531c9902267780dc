"""Shows the runs of some folders or of a sweep as a table: state, accuracy, staleness, clipped
share, speed, and an alarm when a collapse may be coming. It refreshes until all runs are done, or
until Ctrl-C."""

import signal
import sys
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from rec_experiments.analysis import watch
from rec_experiments.cli.parser import names_and_overrides, path
from rec_experiments.common.errors import UserError
from rec_experiments.sweeps.manifest import launched, output_folder


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
    once: Annotated[
        bool, Parameter(help="print once and end, as always if the output is not a terminal")
    ] = False,
) -> None:
    """Exits with 128 + SIGINT after Ctrl-C."""
    names, overrides = names_and_overrides(words)
    for word in names if sweep else overrides:
        raise UserError(f"{word}: give run folders, or --sweep NAME with KEY=VALUE")
    jobs = launched(sweep, overrides) if sweep else []
    places = [*map(path, names)] or [output_folder()]
    for place in () if sweep else places:
        if not place.is_dir():
            raise UserError(f"{place}: no such folder; name run folders, or --sweep NAME")

    def look() -> list[watch.Line]:
        return watch.lines(jobs or watch.jobs_in(places))

    try:
        watch.watch(look, once, Console(highlight=False))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
