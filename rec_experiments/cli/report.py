"""Writes one HTML page of figures, claims and runs that needs no network, or creates a W&B Report
of runs that are stored there."""

from collections.abc import Sized
from datetime import datetime
from pathlib import Path
from typing import Annotated

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
    PROGRAM,
    Overrides,
    file_ending,
    names_among,
    option,
    run_folders,
)
from rec_experiments.errors import UserError
from rec_experiments.files import write_atomic, writing

OUT = "report.html"


def entity_and_project(text: str) -> tuple[str, str]:
    """The two parts of ENTITY/PROJECT."""
    entity, slash, project = text.partition("/")
    if not (entity and slash and project) or "/" in project:
        raise ValueError(f"{text}: must be ENTITY/PROJECT")
    return entity, project


def main(
    *overrides: Overrides,
    figures: Annotated[
        list[str] | None,
        option(
            names_among(catalogue.names()),
            "names, separated by commas; by default all that have half of their runs, except "
            f"{catalogue.LARGEST}, and the runs that belong to no figure",
        ),
    ] = None,
    runs: Annotated[
        list[Path] | None,
        option(
            run_folders, "folders that contain run folders; by default where the sweeps put them"
        ),
    ] = None,
    out: Annotated[Path | None, option(file_ending(".html"), f"the page; by default {OUT}")] = None,
    wandb: Annotated[
        tuple[str, str] | None,
        option(entity_and_project, "ENTITY/PROJECT: create a W&B Report there instead of the page"),
    ] = None,
) -> None:
    """Raises UserError for what the page or W&B refuses."""
    if not wandb:
        write_page([*overrides], figures, runs, out or Path(OUT))
        return
    for key, given in (("--runs", runs), ("--out", out)):
        if given:
            raise UserError(f"{key}: not allowed with --wandb, which reads runs from W&B")
    for name in figures or ():
        if name not in sweeps.names():
            raise UserError(f"--figures {name}: has no runs; allowed: {', '.join(sweeps.names())}")
    usual = [name for name in sweeps.names() if sweeps.load_figure(name).picture == "curves"]
    sections = wandb_report.sections(figures or usual, [*overrides])
    entity, project = wandb
    print(wandb_report.save(wandb_report.build(entity, project, sections)))


def write_page(
    overrides: list[str], figures: list[str] | None, runs: list[Path] | None, out: Path
) -> None:
    """Write the page. Raises UserError if there is nothing to show or it cannot be written."""
    named = f" of {', '.join(figures)}" if figures else ""
    makes = f"-m sweep={figures[0]} makes some" if figures else "makes one"
    nothing = UserError(f"nothing to show: there is no run{named} yet; {PROGRAM} {makes}")
    folders = runs or [output_folder(overrides)]
    for folder in folders:
        if folder.is_file():
            raise UserError(
                f"--runs {folder}: must be a folder of runs; figures and claims read archives"
            )
    if not (figures or any_runs(folders)):  # composing all sweeps takes a while
        raise nothing
    with Console(stderr=True).status("reading runs"):
        contents = gather(
            figures or [name for name in catalogue.usual() if name not in COMPUTED],
            runs,
            overrides,
            every_run=not figures,
        )
    if not (contents.figures or contents.runs or contents.few_runs or contents.left_out):
        raise nothing
    written = datetime.now().strftime("%-d %B %Y, %H:%M")
    page = render(contents, written, out.parent).encode(errors="replace")
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, page)
    counted = f"{_counted(contents.figures, 'figure')}, {_counted(contents.runs, 'run')}"
    print(f"{out}: {counted}, {len(page) / 1e6:.1f} MB")
    if contents.few_runs:
        few = ", ".join(contents.few_runs)
        print(f"  too few runs to draw (--figures NAME draws one anyway): {few}")
    if contents.without_runs:
        print(f"  no run yet: {', '.join(contents.without_runs)}")


def _counted(things: Sized, name: str) -> str:
    return f"{len(things)} {name}{'' if len(things) == 1 else 's'}"
