"""`python -m rec_experiments.claims [runs=FOLDER,…] [out=FILE.json|.md] [overrides]`."""

import sys
from pathlib import Path

from rich.console import Console

from rec_experiments import command, sweeps
from rec_experiments.claims import tables, verdicts
from rec_experiments.errors import UserError
from rec_experiments.files import write_atomic
from rec_experiments.results.collect import NoRuns, collect
from rec_experiments.results.runs import FigureData
from rec_experiments.results.tables import to_json

USAGE = """\
usage: python -m rec_experiments.claims [runs=FOLDER,…] [out=FILE] [KEY=…]

runs    folders that hold the run folders; default: where the sweeps put them
out     FILE.json or FILE.md, to write the verdicts to as well
KEY     chooses the runs as on a sweep's command line: scale=paper, seed=0,1, …"""

WRITERS = {
    ".json": lambda found: to_json([tables.plain(verdict) for verdict in found]),
    ".md": lambda found: tables.markdown(found).encode(),
}


def read(
    console: Console, folders: list[Path] | None, overrides: list[str]
) -> dict[str, FigureData]:
    """The data of every figure that has runs."""
    found = {}
    for name in sweeps.names():
        with console.status(f"reading the runs of {name}"):
            try:
                found[name] = collect(name, folders, overrides)
            except NoRuns:
                continue
    return found


def run(arguments: list[str]) -> None:
    """Raises UserError for a wrong argument or a file that cannot be written."""
    line = command.parse(arguments, "runs", "out")
    line.refuse_words("runs=FOLDER,…, out=FILE, KEY=VALUE")
    out = Path(line.values["out"]) if "out" in line.values else None
    if out and out.suffix not in WRITERS:
        raise UserError(f"out={out}: the name must end in {' or '.join(WRITERS)}")
    found = verdicts(read(Console(stderr=True), line.runs, line.overrides))
    if out:
        with command.writing(out):
            write_atomic(out, WRITERS[out.suffix](found))
    tables.show(Console(), found)


def main(arguments: list[str]) -> None:
    command.plain_main(run, USAGE, arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
