"""Writes one HTML page of figures, claims and runs that needs no network, or creates a W&B Report
of runs that are stored there."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

from rich.console import Console

from rec_experiments import sweeps
from rec_experiments.analysis import claims
from rec_experiments.analysis.figures import catalogue
from rec_experiments.analysis.report import page, wandb_report
from rec_experiments.analysis.results import table
from rec_experiments.cli.parser import PROGRAM, Overrides, Runs, file_ending, names_among, option
from rec_experiments.common.errors import UserError, meant
from rec_experiments.common.files import write_atomic, writing


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
    runs: Runs = None,
    out: Annotated[Path, option(file_ending(".html"), "the page")] = Path("report.html"),
    wandb: Annotated[
        tuple[str, str] | None,
        option(entity_and_project, "ENTITY/PROJECT: create a W&B Report there instead of the page"),
    ] = None,
) -> None:
    """Raises UserError for what the page or W&B refuses."""
    if not wandb:
        write_page([*overrides], figures, runs or [sweeps.output_folder(overrides)], out)
        return
    if runs:
        raise UserError("--runs: not allowed with --wandb, which reads runs from W&B")
    names = sweeps.names()
    for name in figures or ():
        if name not in names:
            raise UserError(f"--figures {name}: has no runs; {meant(name, names)}")
    usual = [name for name in names if sweeps.load_figure(name).picture == "curves"]
    sections = wandb_report.sections(figures or usual, [*overrides])
    print(wandb_report.save(wandb_report.build(*wandb, sections)))


def write_page(
    overrides: list[str], figures: list[str] | None, places: list[Path], out: Path
) -> None:
    """Write the page. Raises UserError if there is nothing to show or it cannot be written."""
    with Console(stderr=True).status("reading runs"):
        begun, found = table.runs(places), table.find(places)
        made = {*begun["figure"]} - {""}
        chosen = figures or sorted(made, key=[*sweeps.names(), *sorted(made)].index)
        drawn = {name: page.picture(name, found, overrides) for name in chosen}
        pictures = [picture for picture in drawn.values() if picture]
        swept = [name for name in chosen if name in sweeps.names()]
        scale = sweeps.load_figure(swept[0], overrides).scale if swept else ""
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
    shown = ", ".join(name for name in chosen if drawn[name]) or "no figure"
    print(f"{out}: {shown}; runs: {len(lines)}; {len(html) / 1e6:.1f} MB")
    if without := sorted(name for name in chosen if not drawn[name]):
        print(f"  no run yet: {', '.join(without)}")
