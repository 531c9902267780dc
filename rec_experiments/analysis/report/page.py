"""One HTML page: the verdicts on claims, a table of runs, and the figures that have runs.

The page needs no network. Curves to explore are those of a tracker, as of `tracking=trackio`.
"""

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
import pandas

from rec_experiments.analysis.claims import tables
from rec_experiments.analysis.claims.judge import Verdict
from rec_experiments.analysis.figures import catalogue
from rec_experiments.analysis.figures.render import as_file
from rec_experiments.analysis.results.figure import NoRuns
from rec_experiments.analysis.results.statistics import ACCURACY, NoValue, curve, final, seconds
from rec_experiments.analysis.results.table import table
from rec_experiments.runs.metrics import title
from rec_experiments.sweeps import SetByArm

DPI = 130  # sharp on a phone, small in the page
MEASURED = (ACCURACY, "train/reward", "train/kl")
TONES = {
    "supported": "good", "contradicted": "bad", "no difference above δ": "bad",
    "undecided": "open", "done": "good", "failed": "bad", "running": "open",
}  # fmt: skip
Picture = dict[str, Any]  # the drawing, and its png (base64)
Line = dict[str, str | int | float]  # of the table of runs, by heading; "" for no number


def render(
    verdicts: Sequence[Verdict], lines: Sequence[Line], pictures: Sequence[Picture], written: str
) -> str:
    """The page. All texts are escaped. written: date and time."""
    source = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    template = jinja2.Environment(autoescape=True, trim_blocks=True).from_string(source)
    shown = {"verdicts": verdicts, "lines": lines, "pictures": pictures, "written": written}
    return template.render(shown, tables=tables, tones=TONES)


def picture(name: str, found: pandas.DataFrame, overrides: Sequence[str]) -> Picture | None:
    """A figure or multirun; None without runs. found: of `table.find`. Raises UserError for a wrong
    override."""
    try:
        data = catalogue.runs_of(name, found, overrides)
    except (NoRuns, SetByArm):
        return None
    drawing = catalogue.draw(name, data)
    png = base64.b64encode(as_file(drawing.figure, "png", DPI)).decode()
    return {"drawing": drawing, "png": png}


def lines_of(runs: pandas.DataFrame, home: Path) -> list[Line]:
    """A line for each run that has begun. runs: of `table.runs`. home: the folder of the page."""
    lines = []
    for _, labels in runs.groupby("run", sort=False):
        run = labels.iloc[0]
        rows = table(labels.iloc[:1])
        lines.append(
            {
                "run": run["arm"],
                "folder": quote(os.path.relpath(run["path"], home)),
                "schedule": run["column"],
                "seed": int(run["seed"]),
                "state": run["state"],
                "step": int(run["step"]),
                **{title(key): _final(rows, key) for key in MEASURED},
                "seconds": float(seconds(rows).sum()),
                "figures": ", ".join(filter(None, labels["figure"].unique())),
                "note": run["note"],
            }
        )
    return lines


def _final(rows: pandas.DataFrame, metric: str) -> float | str:
    try:
        return final(curve(rows, metric))
    except NoValue:
        return ""
