"""Measures how far the policy moves between drawing and using a sample (mean over seeds), and
prints it next to published values."""

from pathlib import Path
from typing import Annotated

from rich.console import Console

from rec_experiments.analysis import regime
from rec_experiments.analysis.results import table
from rec_experiments.cli.parser import option, path
from rec_experiments.common.errors import UserError
from rec_experiments.sweeps.manifest import output_folder


def main(
    *folders: Annotated[
        Path,
        option(path, f"run folders, or folders that contain some; by default {output_folder()}"),
    ],
) -> None:
    """Raises UserError for folders without a run."""
    places = folders or (output_folder(),)
    found = table.runs(places)
    if found.empty:
        raise UserError(f"no run in {', '.join(map(str, places))}")
    text = regime.text(regime.tables(found))
    Console().print(text, markup=False, highlight=False, soft_wrap=True, end="")
