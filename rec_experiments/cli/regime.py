"""Measures how far the policy moves between drawing and using a sample (mean over seeds), and
prints it next to published values."""

from pathlib import Path
from typing import Annotated

import pandas
from cyclopts import Parameter
from rich.console import Console

from rec_experiments import sweeps
from rec_experiments.analysis import regime
from rec_experiments.analysis.results import table
from rec_experiments.analysis.results.figure import figure_runs
from rec_experiments.cli.parser import Runs, names_and_overrides, path
from rec_experiments.common.errors import UserError


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
    text = regime.text(regime.tables(read(folders, overrides, sweep, runs)))
    Console().print(text, markup=False, highlight=False, soft_wrap=True, end="")


def read(
    folders: list[str], overrides: list[str], sweep: str | None, runs: list[Path] | None
) -> pandas.DataFrame:
    """The runs that the command line names. Raises UserError if it names none."""
    if sweep is None:
        for key in (*(["--runs"] if runs else []), *overrides):
            raise UserError(f"{key}: selects runs of a sweep; name one, as in --sweep fig3")
        if not folders:
            raise UserError("no runs are named: give run folders or a sweep, as in --sweep fig3")
        places = [*map(path, folders)]
        for place in places:
            if not (place / "metrics.jsonl").exists():
                raise UserError(f"{place}: is not a run folder, it has no metrics.jsonl")
        return table.runs(places)
    for folder in folders:
        raise UserError(f"{folder}: not allowed with --sweep {sweep}; give folders or a sweep")
    return figure_runs(sweep, table.find(runs or [sweeps.output_folder(overrides)]), overrides).runs
