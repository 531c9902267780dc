"""Measures how far the policy moves between drawing and using a sample (mean over seeds), and
prints it next to published values."""

from argparse import Namespace

from rich.console import Console

from rec_experiments.analysis.regime import tables
from rec_experiments.analysis.regime.arms import Arm, arms_in, arms_of
from rec_experiments.analysis.regime.sections import sections
from rec_experiments.cli.parser import OVERRIDES, RUNS, Parser, path, run_folders
from rec_experiments.errors import UserError


def add_arguments(parser: Parser) -> None:
    parser.add_argument("folders", nargs="*", metavar="RUN", help="run folders")
    parser.add_argument("--sweep", metavar="NAME", help="the runs of a figure, in place of folders")
    parser.add_argument("--runs", type=run_folders, metavar="FOLDER,…", help=RUNS)
    parser.add_overrides(OVERRIDES)


def main(args: Namespace) -> None:
    text = tables.text(sections(read(args, args.folders)))
    Console().print(text, markup=False, highlight=False, soft_wrap=True, end="")


def read(args: Namespace, folders: list[str]) -> list[Arm]:
    """The arms that the command line names. Raises UserError if it names none."""
    if args.sweep is None:
        for key in (*(["runs"] if args.runs else []), *args.overrides):
            raise UserError(f"{key}: selects runs of a sweep; name one, as in sweep=fig3")
        if not folders:
            raise UserError("no runs are named: give run folders or a sweep, as in sweep=fig3")
        return arms_of([*map(path, folders)])
    for folder in folders:
        raise UserError(f"{folder}: not allowed with sweep={args.sweep}; give folders or a sweep")
    from rec_experiments.analysis.results.figure_data import collect  # composes configurations

    return arms_in(collect(args.sweep, args.runs, args.overrides))
