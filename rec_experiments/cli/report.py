"""Writes one HTML page of figures, claims and runs that needs no network, or creates a W&B Report
of runs that are stored there."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

from rich.console import Console

from rec_experiments import sweeps
from rec_experiments.analysis import claims
from rec_experiments.analysis.report import page, wandb_report
from rec_experiments.analysis.results import table
from rec_experiments.cli.parser import PROGRAM, Overrides, Runs, file_ending, option
from rec_experiments.common.errors import UserError
from rec_experiments.common.files import write_atomic, writing


def entity_and_project(text: str) -> tuple[str, str]:
    """The two parts of ENTITY/PROJECT."""
    entity, slash, project = text.partition("/")
    if not (entity and slash and project) or "/" in project:
        raise ValueError(f"{text}: must be ENTITY/PROJECT")
    return entity, project


def main(
    *overrides: Overrides,
    runs: Runs = None,
    out: Annotated[Path, option(file_ending(".html"), "the page")] = Path("report.html"),
    wandb: Annotated[
        tuple[str, str] | None,
        option(entity_and_project, "ENTITY/PROJECT: create a W&B Report there instead of the page"),
    ] = None,
) -> None:
    """Raises UserError for what the page or W&B refuses."""
    if wandb and runs:
        raise UserError("--runs: not allowed with --wandb, which reads runs from W&B")
    if wandb:
        names = [each for each in sweeps.names() if sweeps.load_figure(each).picture == "curves"]
        sections = wandb_report.sections(names, [*overrides])
        print(wandb_report.save(wandb_report.build(*wandb, sections)))
    else:
        write_page([*overrides], runs or [sweeps.output_folder(overrides)], out)


def write_page(overrides: list[str], places: list[Path], out: Path) -> None:
    """Write the page. Raises UserError if there is nothing to show or it cannot be written."""
    with Console(stderr=True).status("reading runs"):
        begun, found = table.runs(places), table.find(places)
        if begun.empty:
            raise UserError(
                f"nothing to show: there is no run yet; {PROGRAM} -m sweep=FIGURE makes some"
            )
        made = sorted({*begun["figure"]} - {""})
        swept = [name for name in sweeps.names() if name in made]
        chosen = [*swept, *(name for name in made if name not in swept)]
        drawn = {name: page.picture(name, found, overrides) for name in chosen}
        verdicts = []
        if swept:
            about = [claim for claim in claims.CLAIMS if claim.primary.figure in swept]
            scale = sweeps.load_figure(swept[0], overrides).scale
            setting = claims.settings(scale, overrides)[0]
            verdicts = claims.judged(about, setting, found, overrides)
    written = datetime.now().strftime("%-d %B %Y, %H:%M")
    lines = page.lines_of(begun, out.parent)
    pictures = [picture for picture in drawn.values() if picture]
    html = page.render(verdicts, lines, pictures, written).encode(errors="replace")
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, html)
    shown = ", ".join(name for name in chosen if drawn[name]) or "no figure"
    print(f"{out}: {shown}; runs: {len(lines)}; {len(html) / 1e6:.1f} MB")
    if without := ", ".join(name for name in chosen if not drawn[name]):
        print(f"  no run yet: {without}")
