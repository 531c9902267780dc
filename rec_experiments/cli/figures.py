"""Draws a figure from its runs, as far as they have got: pictures, data and statistics."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from rec_experiments.analysis import claims, regime
from rec_experiments.analysis.claims import tables
from rec_experiments.analysis.claims.decision import Outcome
from rec_experiments.analysis.figures import catalogue
from rec_experiments.analysis.figures.computed import COMPUTED
from rec_experiments.analysis.figures.curves import WINDOW
from rec_experiments.analysis.figures.render import Drawing, write
from rec_experiments.analysis.results.figure import NoRuns, figure_runs, multirun, output_folder
from rec_experiments.analysis.results.summary import remarks
from rec_experiments.analysis.results.table import find
from rec_experiments.cli.parser import (
    PROGRAM,
    Overrides,
    Runs,
    number,
    option,
    path,
)
from rec_experiments.common.errors import UserError, meant
from rec_experiments.common.files import writing
from rec_experiments.sweeps import SetByArm


def main(
    name: Annotated[
        str,
        Parameter(
            help=f"a figure, a sweep or a multirun; or all, without {catalogue.LARGEST}; "
            f"{PROGRAM} sweeps list names the sweeps, and {', '.join(COMPUTED)} need no runs"
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
    """Write each figure, and name the figures without runs at the end. Raises UserError for an
    unknown figure, or if none of the figures has a run."""
    known = catalogue.names()
    if name not in (*known, "all"):
        multiruns = set(find(runs or [output_folder(overrides)])["figure"]) - {*known, ""}
        if name not in multiruns:
            raise UserError(f"figure {name}: no such figure; {meant(name, [*known, *multiruns])}")
        if overrides:
            raise UserError(f"{overrides[0]}: {name} is drawn with all of its runs")
    if overrides and name in COMPUTED:
        key = overrides[0].partition("=")[0]
        raise UserError(f"{key}: {name} is computed without runs; only --out FOLDER is allowed")
    without: dict[str, UserError] = {}
    for each in catalogue.usual() if name == "all" else [name]:
        try:
            with Console(stderr=True).status(f"drawing {each}"):
                drawing, notes = make(each, runs, [*overrides], smooth)
        except (NoRuns, SetByArm) as error:
            without[each] = error
            continue
        with writing(out):
            first, *others = write(drawing, out)
        print(f"{each}: {first} and {', '.join(path.suffix for path in others)}")
        for note in notes:
            print(f"  {note}")
    if len(without) == 1:
        raise next(iter(without.values()))
    if without:
        raise UserError(
            f"not drawn, without runs or with arms that set a key given here: "
            f"{', '.join(without)}; make the runs of a figure with: "
            f"{PROGRAM} -m sweep=FIGURE"
        )


def make(
    name: str, runs: list[Path] | None, overrides: list[str], smooth: int
) -> tuple[Drawing, list[str]]:
    """A figure, and remarks to print with it."""
    if name in COMPUTED:
        return COMPUTED[name](), []
    found_runs = find(runs or [output_folder(overrides)])
    if name not in catalogue.names():
        data = multirun(name, found_runs)
        return catalogue.draw(data, smooth), remarks(data)
    data = figure_runs(name, found_runs, overrides)
    if data.picture in catalogue.MAPS:  # their statistics are in the picture's own table
        return catalogue.draw(data, smooth), remarks(data)
    # A claim may need arms of other figures, which a choice of arms of this one does not name.
    cells = [each for each in overrides if not each.startswith("hydra.sweeper.only=")]
    found = [] if data.swept else claims.about([name], data.scale, found_runs, cells)
    drawing = catalogue.draw(data, smooth)
    measured = regime.tables(data.runs)
    with_claims = replace(
        drawing,
        statistics={
            **drawing.statistics,
            "claims": [tables.plain(each) for each in found],
            "regime": {
                column: {title: regime.records(block) for title, block in blocks.items()}
                for column, blocks in measured.items()
            },
        },
        summary=drawing.summary
        + (f"\nClaims that {name} judges\n\n{tables.text(found)}" if found else "")
        + (f"\nRegime\n\n{regime.text(measured)}" if measured else ""),
    )
    judged = [each.sentence for each in found if each.outcome is not Outcome.not_run]
    return with_claims, [*remarks(data), *judged]
