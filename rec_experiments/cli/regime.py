"""Measures how far the policy moves between drawing and using a sample (mean over seeds), and
prints it next to published values."""

from pathlib import Path
from typing import Annotated

from rich.console import Console

from rec_experiments.analysis import regime
from rec_experiments.analysis.results import table
from rec_experiments.cli.parser import option, path
from rec_experiments.common.errors import UserError


def main(
    *folders: Annotated[Path, option(path, "run folders, or folders that contain some")],
) -> None:
    """Raises UserError for folders without a run."""
    found = table.runs(folders)
    if found.empty:
        raise UserError(f"no run in {', '.join(map(str, folders)) or 'no folder'}")
    text = regime.text(regime.tables(found))
    Console().print(text, markup=False, highlight=False, soft_wrap=True, end="")
