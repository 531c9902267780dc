"""`python -m rec_experiments.claims [runs=FOLDER,…] [out=FILE.json|.md] [overrides]`."""

import sys
from pathlib import Path

from rich.console import Console

from rec_experiments import sweeps
from rec_experiments.claims import tables, verdicts
from rec_experiments.cli import USER_ERROR
from rec_experiments.figures.curves import FigureData, to_json
from rec_experiments.figures.sweep import NoRuns, collect, run_folders
from rec_experiments.run_folder import write_atomic
from rec_experiments.types import UserError

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
    if wrong := [argument for argument in arguments if "=" not in argument]:
        raise UserError(f"{wrong[0]}: allowed are only runs=FOLDER, out=FILE and KEY=VALUE")
    values = dict(argument.split("=", 1) for argument in arguments)
    folders = run_folders(values.pop("runs")) if "runs" in values else None
    out = Path(values.pop("out")) if "out" in values else None
    if out and out.suffix not in WRITERS:
        raise UserError(f"out={out}: the name must end in {' or '.join(WRITERS)}")
    overrides = [f"{key}={value}" for key, value in values.items()]
    found = verdicts(read(Console(stderr=True), folders, overrides))
    if out:
        try:
            write_atomic(out, WRITERS[out.suffix](found))
        except OSError as error:
            raise UserError(f"out={out}: cannot be written ({error.strerror})") from error
    tables.show(Console(), found)


def main(arguments: list[str]) -> None:
    if arguments and arguments[0] in ("-h", "--help"):
        print(USAGE)
        return
    try:
        run(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)


if __name__ == "__main__":
    main(sys.argv[1:])
