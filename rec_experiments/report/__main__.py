"""`python -m rec_experiments.report [figures=…] [runs=…] [out=FILE] [--wandb E/P] [KEY=…]`."""

import sys
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rec_experiments import sweeps
from rec_experiments.cli import USER_ERROR
from rec_experiments.figures.__main__ import all_names
from rec_experiments.figures.sweep import run_folders
from rec_experiments.report import wandb_report
from rec_experiments.report.contents import gather
from rec_experiments.report.page import render
from rec_experiments.run_folder import write_atomic
from rec_experiments.types import UserError

OUT = "report.html"
USAGE = """\
usage: python -m rec_experiments.report [figures=NAME,…] [runs=FOLDER,…] [out=FILE] [KEY=…]
       python -m rec_experiments.report --wandb ENTITY/PROJECT [figures=NAME,…] [KEY=…]

Writes one HTML page that needs no network, or creates a W&B Report of runs logged there.

figures  {names}; default: all, and the runs that belong to none
runs     folders that hold the run folders; default: where the sweeps put them
out      the page; default: {out}
KEY      chooses the runs as on the sweeps' own command line: scale=paper, seed=0, …"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What the command line asks for. names: figures, empty for all. wandb: entity, project."""

    names: list[str] = field(default_factory=list)
    runs: list[Path] | None = None
    out: Path = Path(OUT)
    wandb: tuple[str, str] | None = None
    overrides: list[str] = field(default_factory=list)


def parse(arguments: list[str]) -> Request:
    """Raises UserError for what is not understood."""
    chosen: dict[str, Any] = {}
    rest = list(arguments)
    if "--wandb" in rest:
        place = rest.index("--wandb")
        chosen["wandb"] = _target(*rest[place + 1 : place + 2])
        del rest[place : place + 2]
    for argument in rest:
        if "=" not in argument:
            raise UserError(f"{argument}: is not understood; allowed: figures=, runs=, out=, KEY=")
    values = dict(argument.split("=", 1) for argument in rest)
    if "figures" in values:
        allowed = sweeps.names() if "wandb" in chosen else all_names()
        chosen["names"] = values.pop("figures").split(",")
        for name in chosen["names"]:
            if name not in allowed:
                raise UserError(
                    f"figures={name}: no such figure; allowed, with commas: {', '.join(allowed)}"
                )
    for key in {"runs", "out"} & values.keys() if "wandb" in chosen else ():
        raise UserError(f"{key}={values[key]}: --wandb reads runs from W&B and writes no file")
    if "runs" in values:
        chosen["runs"] = run_folders(values.pop("runs"))
    if "out" in values:
        chosen["out"] = Path(values.pop("out"))
        if chosen["out"].suffix != ".html":
            raise UserError(f"out={chosen['out']}: must be a file that ends in .html")
    return Request(overrides=[f"{k}={v}" for k, v in values.items()], **chosen)


def _target(text: str = "") -> tuple[str, str]:
    entity, slash, project = text.partition("/")
    if not (entity and slash and project) or "/" in project:
        raise UserError(f"--wandb {text}: must be ENTITY/PROJECT".replace("  ", " "))
    return entity, project


def write_page(request: Request) -> None:
    """Write the page. Raises UserError if there is nothing to show or it cannot be written."""
    contents = gather(
        request.names or all_names(), request.runs, request.overrides, every_run=not request.names
    )
    page = render(contents, datetime.now().strftime("%-d %B %Y, %H:%M")).encode()
    try:
        request.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(request.out, page)
    except OSError as error:
        raise UserError(f"out={request.out}: cannot be written ({error.strerror})") from error
    print(
        f"{request.out}: {len(contents.figures)} figures, {len(contents.runs)} runs, "
        f"{len(page) / 1e6:.1f} MB"
    )
    if contents.without_runs:
        print(f"  no run yet: {', '.join(contents.without_runs)}")


def main(arguments: list[str]) -> None:
    if {"-h", "--help"} & set(arguments):
        print(USAGE.format(names=", ".join(all_names()), out=OUT))
        return
    try:
        request = parse(arguments)
        if request.wandb:
            sections = wandb_report.sections(request.names or sweeps.names(), request.overrides)
            print(wandb_report.save(wandb_report.build(*request.wandb, sections)))
        else:
            write_page(request)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)


if __name__ == "__main__":
    main(sys.argv[1:])
