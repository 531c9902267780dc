"""Draws a figure from its runs, as far as they have got: pictures, data and statistics."""

from argparse import Namespace
from dataclasses import replace
from math import inf

from rich.console import Console

from rec_experiments.analysis import claims
from rec_experiments.analysis.claims import tables
from rec_experiments.analysis.claims.decision import Outcome
from rec_experiments.analysis.figures import catalogue
from rec_experiments.analysis.figures.computed import COMPUTED
from rec_experiments.analysis.figures.curves import WINDOW
from rec_experiments.analysis.figures.render import Drawing, write
from rec_experiments.analysis.regime import tables as regime
from rec_experiments.analysis.regime.arms import arms_in
from rec_experiments.analysis.regime.sections import sections
from rec_experiments.analysis.results.figure_data import NoRuns, collect
from rec_experiments.analysis.results.summary import remarks
from rec_experiments.cli.parser import (
    OVERRIDES,
    PROGRAM,
    RUNS,
    Parser,
    number_between,
    path,
    run_folders,
)
from rec_experiments.errors import UserError, meant
from rec_experiments.files import writing
from rec_experiments.sweeps import SetByArm

OUT = "figures"


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "name", metavar="NAME",
        help=f"{', '.join(catalogue.names())}; or all, without {catalogue.LARGEST}",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=path, default=OUT, metavar="FOLDER",
        help="where to write NAME.png, .pdf, .csv (the data), .json and .txt (statistics); "
        "default: %(default)s",
    )  # fmt: skip
    parser.add_argument("--runs", type=run_folders, metavar="FOLDER,…", help=RUNS)
    parser.add_argument(
        "--smooth", type=number_between(1, inf), default=WINDOW, metavar="STEPS",
        help="window of the running averages of training rewards and of the accuracy of late "
        "responses; default: %(default)s",
    )  # fmt: skip
    parser.add_overrides(OVERRIDES)


def main(args: Namespace) -> None:
    """Write each figure, and name the figures without runs at the end. Raises UserError for an
    unknown figure, or if none of the figures has a run."""
    if args.name not in (*catalogue.names(), "all"):
        raise UserError(
            f"figure {args.name}: no such figure; {meant(args.name, catalogue.names())}"
        )
    if args.overrides and args.name in COMPUTED:
        key = args.overrides[0].partition("=")[0]
        raise UserError(f"{key}: {args.name} is computed without runs; only out=FOLDER is allowed")
    without: dict[str, UserError] = {}
    for name in catalogue.usual() if args.name == "all" else [args.name]:
        try:
            with Console(stderr=True).status(f"drawing {name}"):
                drawing, notes = make(name, args)
        except (NoRuns, SetByArm) as error:
            without[name] = error
            continue
        with writing(args.out):
            first, *others = write(drawing, args.out)
        print(f"{name}: {first} and {', '.join(path.suffix for path in others)}")
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


def make(name: str, args: Namespace) -> tuple[Drawing, list[str]]:
    """A figure, and remarks to print with it."""
    if name in COMPUTED:
        return COMPUTED[name](), []
    data = collect(name, args.runs, args.overrides)
    if data.picture in catalogue.MAPS:  # their statistics are in the picture's own table
        return catalogue.draw(data, args.smooth), remarks(data)
    # A claim may need arms of other figures, which a choice of arms of this one does not name.
    cells = [each for each in args.overrides if not each.startswith("hydra.sweeper.only=")]
    found = [] if data.swept else claims.about([name], data.scale, {}, args.runs, cells)
    drawing = catalogue.draw(data, args.smooth)
    measured = sections(arms_in(data))
    with_claims = replace(
        drawing,
        statistics={
            **drawing.statistics,
            "claims": [tables.plain(each) for each in found],
            "regime": regime.plain(measured),
        },
        summary=drawing.summary
        + (f"\nClaims that {name} judges\n\n{tables.text(found)}" if found else "")
        + (f"\nRegime\n\n{regime.text(measured)}" if measured else ""),
    )
    judged = [each.sentence for each in found if each.outcome is not Outcome.not_run]
    return with_claims, [*remarks(data), *judged]
