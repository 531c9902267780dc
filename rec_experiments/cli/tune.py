"""Chooses the learning rate of each method from the runs of sweep=staleness_tuning, and writes the
sweep of the methods with it."""

import sys
from argparse import Namespace
from pathlib import Path

from rec_experiments.analysis.results.figure_data import scales
from rec_experiments.analysis.tuning import MINIATURES, OUT, SWEEP, read, sweep, written_before
from rec_experiments.cli.parser import PROGRAM, RUNS, Parser, file_ending, names_among, run_folders
from rec_experiments.errors import UserError
from rec_experiments.files import write_out


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--scale", type=names_among(scales()), default=MINIATURES.split(","), metavar="NAME,…",
        help=f"whose runs; default: {MINIATURES}",
    )  # fmt: skip
    parser.add_argument("--runs", type=run_folders, metavar="FOLDER,…", help=RUNS)
    parser.add_argument(
        "--out", type=file_ending(".yaml"), default=Path(OUT), metavar="FILE",
        help="FILE.yaml, the sweep to write; scales in it that are not tuned now are kept; "
        "default: %(default)s",
    )  # fmt: skip


def main(args: Namespace) -> None:
    """Raises UserError if no method could be tuned."""
    before = written_before(args.out)
    now = {scale: {"arms": arms} for scale in args.scale if (arms := read(scale, args.runs))}
    if not now:
        raise UserError(
            f"no method has all of its tuning runs; make them with: {PROGRAM} -m sweep={SWEEP} "
            f"scale={args.scale[0]}"
        )
    if kept := [scale for scale in before if scale not in now]:
        print(f"unchanged in {args.out}: {', '.join(kept)}", file=sys.stderr)
    write_out(args.out, sweep(before | now).encode())
    print(args.out)
