"""Judges the paper's claims on the runs that exist."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress

from rec_experiments import sweeps
from rec_experiments.analysis import claims
from rec_experiments.analysis.claims import tables
from rec_experiments.analysis.claims.decision import Outcome
from rec_experiments.analysis.claims.judge import Verdict
from rec_experiments.analysis.results.formatting import to_json
from rec_experiments.analysis.results.table import find
from rec_experiments.cli.parser import (
    PROGRAM,
    Overrides,
    Runs,
    file_ending,
    names_among,
    option,
)
from rec_experiments.common.errors import UserError
from rec_experiments.common.files import write_out
from rec_experiments.config.composition import choices_by_group

WRITERS = {
    ".json": lambda verdicts: to_json([tables.plain(verdict) for verdict in verdicts]),
    ".md": lambda verdicts: tables.markdown(verdicts).encode(),
}


SCALES = choices_by_group()["scale"]
MINIATURES = [name for name in SCALES if name.startswith("mini")]


def main(
    *overrides: Overrides,
    commands: Annotated[
        bool, Parameter(help="print the sweeps that make the runs of every claim, and end")
    ] = False,
    scale: Annotated[
        list[str], option(names_among(SCALES), f"some of {', '.join(SCALES)}")
    ] = MINIATURES,
    details: Annotated[
        list[str],
        option(
            names_among([claim.id for claim in claims.CLAIMS]),
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
        print(*[line for name in scale for line in claims.commands(name)], sep="\n")
        return
    verdicts = judged(scale, runs, [*overrides])
    if out:
        write_out(out, WRITERS[out.suffix](verdicts))
    chosen = [each for each in verdicts if each.claim.id in details]
    shown = tables.card(verdicts) + ("\n" + tables.text(chosen) if chosen else "")
    Console().print(shown, markup=False, highlight=False, soft_wrap=True, end="")


def judged(scales: list[str], runs: list[Path] | None, overrides: list[str]) -> list[Verdict]:
    """The verdicts at every scale and rate. Raises UserError if no claim has a finished run."""
    places = [each for scale in scales for each in claims.settings(scale, overrides)]
    found = find(runs or [sweeps.output_folder(overrides)])
    verdicts: list[Verdict] = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=sum(len(claims.figures(each)) for each in places))
        for setting in places:

            def read(figure: str, title: str = setting.title) -> None:
                progress.update(task, advance=1, description=f"{title}: reading {figure}")

            verdicts += claims.judged(setting, found, overrides, read)
    if all(verdict.outcome is Outcome.not_run for verdict in verdicts):
        raise UserError(
            f"no claim has finished runs; {PROGRAM} claims --commands prints the sweeps"
        )
    return verdicts
