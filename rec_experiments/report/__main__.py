"""`python -m rec_experiments.report [figures=…] [runs=…] [out=FILE] [--wandb E/P] [KEY=…]`."""

import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from rec_experiments import command, sweeps
from rec_experiments.errors import UserError
from rec_experiments.figures import catalogue
from rec_experiments.files import write_atomic
from rec_experiments.report import wandb_report
from rec_experiments.report.contents import gather
from rec_experiments.report.page import render

OUT = "report.html"
USAGE = """\
usage: python -m rec_experiments.report [figures=NAME,…] [runs=FOLDER,…] [out=FILE] [KEY=…]
       python -m rec_experiments.report --wandb ENTITY/PROJECT [figures=NAME,…] [KEY=…]

Writes one HTML page that needs no network, or creates a W&B Report of runs logged there.

figures  {names}; default: all but staleness and its kind, and the runs that belong to none
runs     folders that hold the run folders; default: where the sweeps put them
out      the page; default: {out}
KEY      chooses the runs as on the sweeps' own command line: scale=paper, seed=0, …"""


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
    rest, wandb = list(arguments), None
    if "--wandb" in rest:
        place = rest.index("--wandb")
        wandb = _target(*rest[place + 1 : place + 2])
        del rest[place : place + 2]
    line = command.parse(rest, "figures", "runs", "out")
    line.refuse_words("figures=NAME,…, runs=FOLDER,…, out=FILE, KEY=VALUE")
    names = line.values["figures"].split(",") if "figures" in line.values else []
    allowed = sweeps.names() if wandb else catalogue.names()
    for name in names:
        if name not in allowed:
            raise UserError(
                f"figures={name}: no such figure; allowed, with commas: {', '.join(allowed)}"
            )
    for key in sorted({"runs", "out"} & line.values.keys()) if wandb else ():
        raise UserError(f"{key}={line.values[key]}: --wandb reads runs from W&B, writes no file")
    out = Path(line.values.get("out", OUT))
    if out.suffix != ".html":
        raise UserError(f"out={out}: must be a file that ends in .html")
    return Request(names=names, runs=line.runs, out=out, wandb=wandb, overrides=line.overrides)


def _target(text: str = "") -> tuple[str, str]:
    entity, slash, project = text.partition("/")
    if not (entity and slash and project) or "/" in project:
        raise UserError(f"--wandb {text}: must be ENTITY/PROJECT".replace("  ", " "))
    return entity, project


def write_page(request: Request) -> None:
    """Write the page. Raises UserError if there is nothing to show or it cannot be written."""
    contents = gather(
        request.names or catalogue.usual(),
        request.runs,
        request.overrides,
        every_run=not request.names,
    )
    page = render(contents, datetime.now().strftime("%-d %B %Y, %H:%M")).encode(errors="replace")
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


def main(arguments: list[str]) -> None:
    command.plain_main(run, USAGE.format(names=", ".join(catalogue.names()), out=OUT), arguments)


if __name__ == "__main__":
    with command.told_once():
        main(sys.argv[1:])
