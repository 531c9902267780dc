"""Writes one HTML page of figures, claims and runs that needs no network, or creates a W&B Report
of runs that are stored there."""

from argparse import ArgumentTypeError, Namespace
from collections.abc import Sized
from datetime import datetime
from pathlib import Path

from rich.console import Console

from rec_experiments import sweeps
from rec_experiments.analysis.figures import catalogue
from rec_experiments.analysis.figures.computed import COMPUTED
from rec_experiments.analysis.report import wandb_report
from rec_experiments.analysis.report.contents import gather
from rec_experiments.analysis.report.page import render
from rec_experiments.analysis.results.begun import output_folder
from rec_experiments.analysis.results.runs import run_folders as any_runs
from rec_experiments.cli.parser import (
    OVERRIDES,
    PROGRAM,
    Parser,
    file_ending,
    names_among,
    run_folders,
)  # fmt: skip
from rec_experiments.errors import UserError
from rec_experiments.files import write_atomic, writing

OUT = "report.html"


def add_arguments(parser: Parser) -> None:
    parser.add_argument(
        "--figures", type=names_among(catalogue.names()), metavar="NAME,…",
        help=f"some of {', '.join(catalogue.names())}; default: all that have half of "
        f"their runs, except {catalogue.LARGEST}, and the runs that belong to no figure",
    )  # fmt: skip
    parser.add_argument(
        "--runs", type=run_folders, metavar="FOLDER,…",
        help="folders that contain the run folders; default: where the sweeps put them",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=file_ending(".html"), metavar="FILE", help=f"the page; default: {OUT}"
    )
    parser.add_argument(
        "--wandb", type=_entity_and_project, metavar="ENTITY/PROJECT",
        help="create a W&B Report there instead of the page",
    )  # fmt: skip
    parser.add_overrides(OVERRIDES)


def main(args: Namespace) -> None:
    """Raises UserError for what the page or W&B refuses."""
    if not args.wandb:
        write_page(args)
        return
    for key in ("runs", "out"):
        if getattr(args, key):
            raise UserError(f"{key}: not allowed with wandb=, which reads runs from W&B")
    for name in args.figures or ():
        if name not in sweeps.names():
            raise UserError(f"figures={name}: has no runs; allowed: {', '.join(sweeps.names())}")
    usual = [name for name in sweeps.names() if sweeps.load_figure(name).picture == "curves"]
    sections = wandb_report.sections(args.figures or usual, args.overrides)
    entity, project = args.wandb
    print(wandb_report.save(wandb_report.build(entity, project, sections)))


def _entity_and_project(text: str) -> tuple[str, str]:
    entity, slash, project = text.partition("/")
    if not (entity and slash and project) or "/" in project:
        raise ArgumentTypeError(f"{text}: must be ENTITY/PROJECT")
    return entity, project


def write_page(args: Namespace) -> None:
    """Write the page. Raises UserError if there is nothing to show or it cannot be written."""
    named = f" of {', '.join(args.figures)}" if args.figures else ""
    makes = f"-m sweep={args.figures[0]} makes some" if args.figures else "makes one"
    nothing = UserError(f"nothing to show: there is no run{named} yet; {PROGRAM} {makes}")
    folders = args.runs or [output_folder(args.overrides)]
    for folder in folders:
        if folder.is_file():
            raise UserError(
                f"runs={folder}: must be a folder of runs; figures and claims read archives"
            )
    if not (args.figures or any_runs(folders)):  # composing all sweeps takes a while
        raise nothing
    with Console(stderr=True).status("reading runs"):
        contents = gather(
            args.figures or [name for name in catalogue.usual() if name not in COMPUTED],
            args.runs,
            args.overrides,
            every_run=not args.figures,
        )
    if not (contents.figures or contents.runs or contents.few_runs or contents.left_out):
        raise nothing
    written = datetime.now().strftime("%-d %B %Y, %H:%M")
    out = args.out or Path(OUT)
    page = render(contents, written, out.parent).encode(errors="replace")
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, page)
    figures, runs = _counted(contents.figures, "figure"), _counted(contents.runs, "run")
    print(f"{out}: {figures}, {runs}, {len(page) / 1e6:.1f} MB")
    if contents.few_runs:
        few = ", ".join(contents.few_runs)
        print(f"  too few runs to draw (figures=NAME draws one anyway): {few}")
    if contents.without_runs:
        print(f"  no run yet: {', '.join(contents.without_runs)}")


def _counted(things: Sized, name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"
