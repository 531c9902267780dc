"""Judges the paper's claims on the runs that exist."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from rec_experiments.analysis.claims import (
    CLAIMS,
    judged,
    paper_curves,
    settings,
    tables,
)
from rec_experiments.analysis.claims import commands as commands_of
from rec_experiments.analysis.results.figure_data import scales
from rec_experiments.analysis.results.formatting import to_json
from rec_experiments.cli.parser import (
    Overrides,
    Runs,
    file_ending,
    names_among,
    option,
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


MINIATURES = [name for name in scales() if name.startswith("mini")]


def main(
    *overrides: Overrides,
    commands: Annotated[
        bool, Parameter(help="print the sweeps that make the runs of every claim, and end")
    ] = False,
    scale: Annotated[
        list[str], option(names_among(scales()), f"some of {', '.join(scales())}")
    ] = MINIATURES,
    details: Annotated[
        list[str],
        option(
            names_among([claim.id for claim in CLAIMS]),
            "claims to print with all their endpoints, below the card",
        ),
    ] = [],  # noqa: B006 (only read)
    runs: Runs = None,
    out: Annotated[
        Path | None,
        option(file_ending(*WRITERS), "FILE.json or FILE.md: also write all details to it"),
    ] = None,
) -> None:
    if commands:
        if details or runs or out or overrides:
            raise UserError("--commands: takes only --scale")
        print(*[line for name in scale for line in commands_of(name)], sep="\n")
        return
    found = {}
    with Console(stderr=True).status("finding the runs of each claim") as status:
        for setting in [each for name in scale for each in settings(name, [*overrides])]:

            def progress(figure: str, title: str = setting.title) -> None:
                status.update(f"{title}: reading {figure}")

            found[setting.title] = judged(setting, runs, [*overrides], progress)
    if out:
        write_out(out, WRITERS[out.suffix](found))
    chosen = [each for of_one in found.values() for each in of_one if each.claim.id in details]
    shown = tables.card(found) + ("\n" + tables.text(chosen) if chosen else "")
    Console().print(shown, markup=False, highlight=False, soft_wrap=True, end="")
