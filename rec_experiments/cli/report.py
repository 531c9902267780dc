"""`python -m rec_experiments report`: one HTML page, or a W&B Report."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rec_experiments import sweeps
from rec_experiments.analysis.figures import catalogue
from rec_experiments.analysis.figures.computed import COMPUTED
from rec_experiments.analysis.report import wandb_report
from rec_experiments.analysis.report.contents import gather
from rec_experiments.analysis.report.page import render
from rec_experiments.cli import command, help
from rec_experiments.errors import UserError
from rec_experiments.files import write_atomic

OUT = "report.html"


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What the command line asks for. names: figures, empty for all. wandb: entity, project."""

    names: list[str]
    runs: list[Path] | None
    out: Path
    wandb: tuple[str, str] | None
    overrides: list[str]


def parse(arguments: list[str]) -> Request:
    """Raises UserError for what is not understood."""
    line = command.parse(arguments, "figures", "runs", "out", "wandb")
    line.refuse_words("figures=NAME,…, runs=FOLDER,…, out=FILE, wandb=ENTITY/PROJECT, KEY=VALUE")
    wandb = _target(line.values["wandb"]) if "wandb" in line.values else None
    names = line.values["figures"].split(",") if "figures" in line.values else []
    allowed = sweeps.names() if wandb else catalogue.names()
    for name in names:
        if name not in allowed:
            raise UserError(
                f"figures={name}: no such figure; allowed, with commas: {', '.join(allowed)}"
            )
    for key in sorted({"runs", "out"} & line.values.keys()) if wandb else ():
        raise UserError(f"{key}={line.values[key]}: wandb= reads runs from W&B, writes no file")
    out = command.out_file(line, ".html") or Path(OUT)
    return Request(names=names, runs=line.runs, out=out, wandb=wandb, overrides=line.overrides)


def _target(text: str) -> tuple[str, str]:
    entity, slash, project = text.partition("/")
    if not (entity and slash and project) or "/" in project:
        raise UserError(f"wandb={text}: must be ENTITY/PROJECT")
    return entity, project


def write_page(request: Request) -> None:
    """Write the page. Raises UserError if there is nothing to show or it cannot be written."""
    contents = gather(
        request.names or [name for name in catalogue.usual() if name not in COMPUTED],
        request.runs,
        request.overrides,
        every_run=not request.names,
    )
    if not (contents.figures or contents.runs or contents.left_out):
        name = contents.without_runs[0]
        raise UserError(
            f"nothing to show: no run of {', '.join(contents.without_runs)} yet; "
            f"python -m rec_experiments -m sweep={name} makes some"
        )
    written = datetime.now().strftime("%-d %B %Y, %H:%M")
    page = render(contents, written, request.out.parent).encode(errors="replace")
    with command.writing(request.out):
        request.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(request.out, page)
    print(
        f"{request.out}: {len(contents.figures)} figures, {len(contents.runs)} runs, "
        f"{len(page) / 1e6:.1f} MB"
    )
    if contents.without_runs:
        print(f"  no run yet: {', '.join(contents.without_runs)}")


def run(arguments: list[str]) -> None:
    """Raises UserError as `parse` and `write_page` do, and for what W&B refuses."""
    request = parse(arguments)
    if request.wandb:
        usual = [name for name in sweeps.names() if name in catalogue.usual()]
        sections = wandb_report.sections(request.names or usual, request.overrides)
        print(wandb_report.save(wandb_report.build(*request.wandb, sections)))
    else:
        write_page(request)


def page() -> help.Page:
    return help.Page(
        command="report",
        usage=(
            "[figures=NAME,…] [runs=FOLDER,…] [out=FILE] [KEY=VALUE …]",
            "wandb=ENTITY/PROJECT [figures=NAME,…] [KEY=VALUE …]",
        ),
        about="Writes one HTML page that needs no network, or creates a W&B Report of runs there.",
        entries={
            "figures=NAME,…": f"{', '.join(catalogue.names())}; default: all "
            "that have runs, except the staleness figures; and runs of no figure",
            "runs=FOLDER,…": help.RUNS,
            "out=FILE": f"the page; default: {OUT}",
            "wandb=ENTITY/PROJECT": "where a W&B Report is made, in place of the page",
            "KEY=VALUE": help.KEY,
        },
    )


def main(arguments: list[str]) -> None:
    command.plain_main(run, page(), arguments)
