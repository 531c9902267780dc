"""Writes one HTML page of figures, claims and runs that needs no network, or creates a W&B Report
of runs that are stored there."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

from rich.console import Console

from rec_experiments.analysis import claims
from rec_experiments.analysis.figures import catalogue
from rec_experiments.analysis.report import page, wandb_report
from rec_experiments.analysis.results import table
from rec_experiments.analysis.results.figure import output_folder
from rec_experiments.cli.parser import (
    PROGRAM,
    Overrides,
    file_ending,
    names_among,
    option,
    run_folders,
)
from rec_experiments.common.errors import UserError, meant
from rec_experiments.common.files import write_atomic, writing
from rec_experiments.sweeps import load_figure, names

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
            "names, separated by commas; by default those whose sweep was launched",
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
        if name not in names():
            raise UserError(f"--figures {name}: has no runs; {meant(name, names())}")
    usual = [name for name in names() if load_figure(name).picture == "curves"]
    sections = wandb_report.sections(figures or usual, [*overrides])
    entity, project = wandb
    print(wandb_report.save(wandb_report.build(entity, project, sections)))


def write_page(
    overrides: list[str], figures: list[str] | None, runs: list[Path] | None, out: Path
) -> None:
    """Write the page. Raises UserError if there is nothing to show or it cannot be written."""
    places = runs or [output_folder(overrides)]
    for place in places:
        if place.is_file():
            raise UserError(
                f"--runs {place}: must be a folder of runs; figures and claims read archives"
            )
    with Console(stderr=True).status("reading runs"):
        begun, found = table.runs(places), table.find(places)
        made = {*begun["figure"]} - {""}
        known = [name for name in names() if name in made]
        chosen = figures or [*known, *sorted(made - {*known})]
        pictures = page.draw(chosen, found, overrides)
        swept = [name for name in chosen if name in names()]
        scale = load_figure(swept[0], overrides).scale if swept else ""
        verdicts = claims.about(swept, scale, found, overrides) if swept else []
    if begun.empty and not pictures:
        makes = f"-m sweep={swept[0]}" if swept else "-m sweep=FIGURE"
        raise UserError(f"nothing to show: there is no run yet; {PROGRAM} {makes} makes some")
    written = datetime.now().strftime("%-d %B %Y, %H:%M")
    lines = page.lines_of(begun, out.parent)
    html = page.render(verdicts, lines, pictures, written).encode(errors="replace")
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, html)
    drawn = ", ".join(picture["name"] for picture in pictures) or "no figure"
    print(f"{out}: {drawn}; runs: {len(lines)}; {len(html) / 1e6:.1f} MB")
    if without := set(chosen) - {picture["name"] for picture in pictures}:
        print(f"  no run yet: {', '.join(sorted(without))}")
