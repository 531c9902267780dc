"""Writes the evaluations of finished runs into one compressed table, which `figures` and
`claims` read as `--runs FILE`."""

from pathlib import Path
from typing import Annotated

from rec_experiments.analysis.results import archive
from rec_experiments.analysis.results.figure import default_folder
from rec_experiments.cli.parser import Runs, file_ending, option
from rec_experiments.common.errors import UserError
from rec_experiments.common.files import ARCHIVE, write_out


def main(
    *,
    runs: Runs = None,
    out: Annotated[
        Path, option(file_ending(ARCHIVE), f"the file to write, whose name ends in {ARCHIVE}")
    ] = Path(f"runs{ARCHIVE}"),
) -> None:
    """Raises UserError if no run has finished."""
    runs = runs or [default_folder()]
    content, number = archive.archived(runs)
    if not number:
        raise UserError(f"no finished run in {', '.join(map(str, runs))}")
    write_out(out, content)
    print(f"{out}: {number} finished runs, {len(content) / 1024:.0f} kB")
