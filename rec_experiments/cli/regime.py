"""Measures how far the policy moves between drawing and using a sample (mean over seeds), and
prints it next to published values."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from rec_experiments.analysis.regime import tables
from rec_experiments.analysis.regime.arms import Arm, arms_in, arms_of
from rec_experiments.analysis.regime.sections import sections
from rec_experiments.cli.parser import Runs, names_and_overrides, path
from rec_experiments.errors import UserError


def main(
    *words: Annotated[
        str, Parameter("RUN", help="run folders; with --sweep KEY=VALUE, which selects runs")
    ],
    sweep: Annotated[
        str | None, Parameter(help="the name of a sweep, for its runs in place of folders")
    ] = None,
    runs: Runs = None,
) -> None:
    folders, overrides = names_and_overrides(words)
    text = tables.text(sections(read(folders, overrides, sweep, runs)))
    Console().print(text, markup=False, highlight=False, soft_wrap=True, end="")


def read(
    folders: list[str], overrides: list[str], sweep: str | None, runs: list[Path] | None
) -> list[Arm]:
    """The arms that the command line names. Raises UserError if it names none."""
    if sweep is None:
        for key in (*(["--runs"] if runs else []), *overrides):
            raise UserError(f"{key}: selects runs of a sweep; name one, as in --sweep fig3")
        if not folders:
            raise UserError("no runs are named: give run folders or a sweep, as in --sweep fig3")
        return arms_of([*map(path, folders)])
    for folder in folders:
        raise UserError(f"{folder}: not allowed with --sweep {sweep}; give folders or a sweep")
    from rec_experiments.analysis.results.figure_data import collect  # composes configurations

    return arms_in(collect(sweep, runs, overrides))
