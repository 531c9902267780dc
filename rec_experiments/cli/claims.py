"""Judges the paper's claims on the runs that exist."""

from argparse import Namespace

from rich.console import Console

from rec_experiments.analysis.claims import CLAIMS, judged, simulation, tables
from rec_experiments.analysis.results.figure_data import scales
from rec_experiments.analysis.results.formatting import to_json
from rec_experiments.cli.parser import (
    OVERRIDES,
    RUNS,
    Parser,
    file_ending,
    names_among,
    run_folders,
)
from rec_experiments.errors import UserError
from rec_experiments.files import write_out

WRITERS = {
    ".json": lambda found: to_json(
        [tables.plain(verdict) for verdicts in found.values() for verdict in verdicts]
    ),
    ".md": lambda found: tables.markdown(found).encode(),
}


def add_arguments(parser: Parser) -> None:
    miniatures = [scale for scale in scales() if scale.startswith("mini")]
    parser.add_argument(
        "simulate", nargs="?", choices=["simulate"], metavar="simulate",
        help="simulate runs instead, and count how often the judgement finds a difference that "
        "does not exist, and one that does",
    )  # fmt: skip
    parser.add_argument(
        "--scale", type=names_among(scales()), default=miniatures, metavar="NAME,…",
        help=f"some of {', '.join(scales())}; default: {', '.join(miniatures)}",
    )  # fmt: skip
    parser.add_argument(
        "--details", type=names_among([claim.id for claim in CLAIMS]), default=[],
        metavar="CLAIM,…", help="print these claims with all their parts; default: one line each",
    )  # fmt: skip
    parser.add_argument("--runs", type=run_folders, metavar="FOLDER,…", help=RUNS)
    parser.add_argument(
        "--out", type=file_ending(*WRITERS), metavar="FILE",
        help="FILE.json or FILE.md: also write the verdicts to this file; default: none",
    )  # fmt: skip
    parser.add_overrides(f"{OVERRIDES}; default: the seeds of a scale (claim_seeds)")


def main(args: Namespace) -> None:
    if args.simulate:
        if args.details or args.runs or args.out or args.overrides:
            raise UserError("simulate: takes no other arguments")
        simulation.show(Console())
        return
    found = {}
    for scale in args.scale:
        with Console(stderr=True).status(f"reading the runs of scale {scale}"):
            found[scale] = judged(scale, args.runs, args.overrides)
    if args.out:
        write_out(args.out, WRITERS[args.out.suffix](found))
    tables.show(Console(), found, args.details)
