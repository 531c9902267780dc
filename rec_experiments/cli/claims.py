"""Judges the paper's claims on the runs that exist."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from rec_experiments import sweeps
from rec_experiments.analysis import claims
from rec_experiments.analysis.claims import tables
from rec_experiments.analysis.claims.decision import Outcome
from rec_experiments.analysis.results.table import find
from rec_experiments.cli.parser import PROGRAM, Runs, file_ending, option, overrides
from rec_experiments.common.errors import UserError, meant
from rec_experiments.common.files import write_out

MINIATURES = "mini,mini_chain"


def main(
    *words: Annotated[
        str,
        overrides(
            "selects runs as on the command line of the sweeps: seed=0,1, …; scale chooses where "
            f"claims are judged, by default scale={MINIATURES}"
        ),
    ],
    commands: Annotated[
        bool, Parameter(help="print the sweeps that make the runs of every claim, and end")
    ] = False,
    details: Annotated[
        str | None, Parameter(help="a claim to print with all its endpoints, below the card")
    ] = None,
    runs: Runs = None,
    out: Annotated[
        Path | None,
        option(file_ending(".md"), "FILE.md: also write all details to it"),
    ] = None,
) -> None:
    """Raises UserError if no claim has a finished run."""
    names = [claim.id for claim in claims.CLAIMS]
    if details and details not in names:
        raise UserError(f"--details={details}: no such claim; {meant(details, names)}")
    scales = [word.partition("=")[2] for word in words if word.startswith("scale=")]
    chosen = [*scales, MINIATURES][0].split(",")
    if commands:
        print(*[line for scale in chosen for line in claims.commands(scale)], sep="\n")
        return
    changes = [word for word in words if not word.startswith("scale=")]
    found = find(runs or [sweeps.output_folder(words)])
    with Console(stderr=True).status("reading runs"):
        verdicts = [
            verdict
            for scale in chosen
            for setting in claims.settings(scale, changes)
            for verdict in claims.judged(claims.CLAIMS, setting, found, changes)
        ]
    if all(verdict.outcome is Outcome.not_run for verdict in verdicts):
        raise UserError(
            f"no claim has finished runs; {PROGRAM} claims --commands prints the sweeps"
        )
    if out:
        write_out(out, tables.markdown(verdicts).encode())
    told = [each for each in verdicts if each.claim.id == details]
    shown = tables.card(verdicts) + ("\n" + tables.text(told) if told else "")
    Console().print(shown, markup=False, highlight=False, soft_wrap=True, end="")
