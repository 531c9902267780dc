"""Draws a figure from its runs, as far as they have got: pictures, data and statistics."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from rec_experiments import sweeps
from rec_experiments.analysis.figures import COMPUTED, catalogue
from rec_experiments.analysis.figures.render import WINDOW, write
from rec_experiments.analysis.results.figure import remarks
from rec_experiments.analysis.results.table import find
from rec_experiments.cli.parser import PROGRAM, Overrides, Runs, number, option, path
from rec_experiments.common.errors import UserError, meant
from rec_experiments.common.files import writing


def main(
    name: Annotated[
        str,
        Parameter(
            help=f"a figure, a sweep or a multirun; {PROGRAM} sweeps list names the sweeps, and "
            f"{', '.join(COMPUTED)} need no runs"
        ),
    ],
    /,
    *overrides: Overrides,
    out: Annotated[
        Path,
        option(path, "where to write NAME.png, .pdf, .csv (the data), .json and .txt (statistics)"),
    ] = Path("figures"),
    runs: Runs = None,
    smooth: Annotated[
        int,
        number(
            "steps in the running averages of training rewards and of the accuracy of late "
            "responses",
            1,
        ),
    ] = WINDOW,
) -> None:
    """Raises UserError for an unknown figure and one without runs."""
    if overrides and name in COMPUTED:
        key = overrides[0].partition("=")[0]
        raise UserError(f"{key}: {name} is computed without runs; only --out FOLDER is allowed")
    found = find(() if name in COMPUTED else runs or [sweeps.output_folder(overrides)])
    known, multiruns = [*sweeps.names(), *COMPUTED], {*found["figure"]} - {""}
    if name not in (*known, *multiruns):
        raise UserError(f"figure {name}: no such figure; {meant(name, [*known, *multiruns])}")
    if overrides and name not in known:
        raise UserError(f"{overrides[0]}: {name} is drawn with all of its runs")
    with Console(stderr=True).status(f"drawing {name}"):
        data = catalogue.runs_of(name, found, overrides)
        drawing = catalogue.draw(name, data, smooth)
    with writing(out):
        first, *others = write(drawing, out)
    print(f"{name}: {first} and {', '.join(path.suffix for path in others)}")
    for note in remarks(data) if data else ():
        print(f"  {note}")
