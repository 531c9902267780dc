"""Writes the evaluations of finished runs into one compressed table, which `figures` and
`claims` read as `runs=FILE`."""

from argparse import Namespace
from pathlib import Path

from rec_experiments.analysis.results import archive
from rec_experiments.analysis.results.begun import default_folder
from rec_experiments.cli.parser import Parser, file_ending, run_folders
from rec_experiments.errors import UserError
from rec_experiments.files import ARCHIVE, write_out


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--runs", type=run_folders, default=[default_folder()], metavar="FOLDER,…",
        help="folders that contain run folders, or archives to include; default: "
        f"{default_folder()}",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=file_ending(ARCHIVE), default=Path(f"runs{ARCHIVE}"), metavar="FILE",
        help=f"the file to write, whose name ends in {ARCHIVE}; default: %(default)s",
    )  # fmt: skip


def main(args: Namespace) -> None:
    """Raises UserError if no run has finished."""
    content, runs = archive.archived(args.runs)
    if not runs:
        raise UserError(f"no finished run in {', '.join(map(str, args.runs))}")
    write_out(args.out, content)
    print(f"{args.out}: {runs} finished runs, {len(content) / 1024:.0f} kB")
