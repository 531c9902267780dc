"""Draws a figure from its runs, as far as they have got: pictures, data and statistics."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import pandas
from cyclopts import Parameter
from rich.console import Console

from rec_experiments import sweeps
from rec_experiments.analysis import claims, regime
from rec_experiments.analysis.claims import tables
from rec_experiments.analysis.claims.decision import Outcome
from rec_experiments.analysis.figures import catalogue
from rec_experiments.analysis.figures.computed import COMPUTED
from rec_experiments.analysis.figures.curves import WINDOW
from rec_experiments.analysis.figures.render import Drawing, write
from rec_experiments.analysis.results.figure import FigureRuns, NoRuns
from rec_experiments.analysis.results.summary import remarks
from rec_experiments.analysis.results.table import find
from rec_experiments.cli.parser import PROGRAM, Overrides, Runs, number, option, path
from rec_experiments.common.errors import UserError, meant
from rec_experiments.common.files import writing


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
    if overrides and name in COMPUTED:
        key = overrides[0].partition("=")[0]
        raise UserError(f"{key}: {name} is computed without runs; only --out FOLDER is allowed")
    found = find(() if name in COMPUTED else runs or [sweeps.output_folder(overrides)])
    known, multiruns = catalogue.names(), {*found["figure"]} - {""}
    if name not in (*known, *multiruns, "all"):
        raise UserError(f"figure {name}: no such figure; {meant(name, [*known, *multiruns])}")
    if overrides and name not in (*known, "all"):
        raise UserError(f"{overrides[0]}: {name} is drawn with all of its runs")
    without: dict[str, UserError] = {}
    for each in catalogue.usual() if name == "all" else [name]:
        try:
            with Console(stderr=True).status(f"drawing {each}"):
                data = catalogue.runs_of(each, found, overrides)
                drawing = catalogue.draw(each, data, smooth)
                notes = remarks(data) if data else []
                if data and data.picture == "curves" and each in known:
                    drawing, judged = with_claims(drawing, data, found, [*overrides])
                    notes += judged
        except (NoRuns, sweeps.SetByArm) as error:
            without[each] = error
            continue
        with writing(out):
            first, *others = write(drawing, out)
        print(f"{each}: {first} and {', '.join(path.suffix for path in others)}")
        print(*(f"  {note}\n" for note in notes), sep="", end="")
    if len(without) == 1:
        raise next(iter(without.values()))
    if without:
        raise UserError(
            f"not drawn, without runs or with arms that set a key given here: "
            f"{', '.join(without)}; make the runs of a figure with: "
            f"{PROGRAM} -m sweep=FIGURE"
        )


def with_claims(
    drawing: Drawing, data: FigureRuns, found: pandas.DataFrame, overrides: list[str]
) -> tuple[Drawing, list[str]]:
    """The drawing with the claims that it judges and the regime of its runs, and the verdicts in a
    sentence each."""
    # A claim may need arms of other figures, which a choice of arms of this one does not name.
    cells = [each for each in overrides if not each.startswith("hydra.sweeper.only=")]
    judged = [] if data.swept else claims.about([data.name], data.scale, found, cells)
    measured = regime.tables(data.runs)
    summary = drawing.summary
    summary += f"\nClaims that {data.name} judges\n\n{tables.text(judged)}" if judged else ""
    summary += f"\nRegime\n\n{regime.text(measured)}" if measured else ""
    plain = {
        "claims": [tables.plain(each) for each in judged],
        "regime": {
            column: {title: regime.records(block) for title, block in blocks.items()}
            for column, blocks in measured.items()
        },
    }
    sentences = [each.sentence for each in judged if each.outcome is not Outcome.not_run]
    return replace(drawing, statistics=drawing.statistics | plain, summary=summary), sentences
