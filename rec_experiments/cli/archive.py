"""Writes the evaluations of finished runs into one compressed table, which `figures` and
`claims` read as `--runs FILE`."""

from pathlib import Path
from typing import Annotated

from rec_experiments import sweeps
from rec_experiments.analysis.results.archive import archived
from rec_experiments.analysis.results.table import runs as read
from rec_experiments.analysis.results.table import table
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
    runs = runs or [sweeps.output_folder()]
    done = read(runs).query("state == 'done'").drop_duplicates("run").sort_values("run")
    if done.empty:
        raise UserError(f"no finished run in {', '.join(map(str, runs))}")
    content = archived(table(done, ["overrides"]))
    write_out(out, content)
    print(f"{out}: {len(done)} finished runs, {len(content) / 1024:.0f} kB")
