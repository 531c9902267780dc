"""Judges the paper's claims on the runs that exist."""

from argparse import Namespace

from rich.console import Console

from rec_experiments.analysis.claims import (
    CLAIMS,
    commands,
    judged,
    paper_curves,
    settings,
    tables,
)
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
    ".md": lambda found: tables.markdown(
        {paper_curves.SETTING.title: paper_curves.verdicts(), **found}
    ).encode(),
}


def add_arguments(parser: Parser) -> None:
    miniatures = [scale for scale in scales() if scale.startswith("mini")]
    parser.add_argument(
        "instead", nargs="?", choices=["commands"], metavar="commands",
        help="print the sweeps that make the runs of every claim",
    )  # fmt: skip
    parser.add_argument(
        "--scale", type=names_among(scales()), default=miniatures, metavar="NAME,…",
        help=f"some of {', '.join(scales())}; default: {', '.join(miniatures)}",
    )  # fmt: skip
    parser.add_argument(
        "--details", type=names_among([claim.id for claim in CLAIMS]), default=[],
        metavar="CLAIM,…",
        help="print these claims with all their endpoints, below the card; default: the card",
    )  # fmt: skip
    parser.add_argument("--runs", type=run_folders, metavar="FOLDER,…", help=RUNS)
    parser.add_argument(
        "--out", type=file_ending(*WRITERS), metavar="FILE",
        help="FILE.json or FILE.md: also write the verdicts with all details to this file; "
        "default: none",
    )  # fmt: skip
    parser.add_overrides(
        f"{OVERRIDES}; default: the seeds and learning rates of a scale (claim_seeds, claim_rates)"
    )


def main(args: Namespace) -> None:
    if args.instead:
        if args.details or args.runs or args.out or args.overrides:
            raise UserError(f"{args.instead}: takes no other arguments")
        print(*[line for scale in args.scale for line in commands(scale)], sep="\n")
        return
    found = {}
    with Console(stderr=True).status("finding the runs of each claim") as status:
        for setting in [each for scale in args.scale for each in settings(scale, args.overrides)]:

            def progress(figure: str, title: str = setting.title) -> None:
                status.update(f"{title}: reading {figure}")

            found[setting.title] = judged(setting, args.runs, args.overrides, progress)
    if args.out:
        write_out(args.out, WRITERS[args.out.suffix](found))
    chosen = [each for of_one in found.values() for each in of_one if each.claim.id in args.details]
    shown = tables.card(found) + ("\n" + tables.text(chosen) if chosen else "")
    Console().print(shown, markup=False, highlight=False, soft_wrap=True, end="")
