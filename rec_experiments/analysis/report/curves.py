"""The numbers of the page's curves, as curves.js reads them.

A number has the upper three bytes of its float32, which is five digits. The first bytes of all
numbers of a metric come first, then the second, then the third; so they compress to about half.
"""

import base64
import os
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from rec_experiments.analysis.figures.style import SOLID, looks
from rec_experiments.analysis.report.columns import TOTALS, Column
from rec_experiments.analysis.report.contents import Contents, FigurePart, RunPart
from rec_experiments.analysis.results.aggregate import CONFIDENCE, t_factor
from rec_experiments.config.identity import flat, identity
from rec_experiments.tracking.metrics import catalogue

LEVEL = 4  # of compression: 6 makes a page 1 % smaller in twice the time
LINE_WIDTH = 1.6  # unit of the figures' dashes
EVERY_RUN = "all runs"


def pack(column: Column) -> str:
    """A column as text."""
    bits = column.view(np.uint32).astype(np.uint64) + 0x80  # rounds to the third byte
    planes = np.stack([bits >> 24, bits >> 16, bits >> 8]).astype(np.uint8)
    return base64.b64encode(zlib.compress(planes.tobytes(), LEVEL)).decode()


def script_data(contents: Contents, home: Path) -> dict[str, Any]:
    """The input of curves.js for a page in the folder `home`.

    metrics: meaning, unit and packed column of each metric, over the rows of all runs. rows: number
    of rows of each run. usual: the most frequent value of each key of the configuration. runs: with
    the keys that differ from `usual`. scopes: each figure and all runs, with lines of (arm, column,
    run). interval: half its width for n seeds, in standard deviations.
    """
    runs = contents.runs
    configs = [_texts(run.config) for run in runs]
    keys = dict.fromkeys(key for config in configs for key in config)
    usual = {
        key: Counter(config.get(key, "") for config in configs).most_common(1)[0][0] for key in keys
    }
    scopes = [_figure(part, runs) for part in contents.figures if part.arms]
    scopes += [_every_run(runs)] * bool(runs)
    cells = Counter((n, *line[:2]) for n, scope in enumerate(scopes) for line in scope["lines"])
    most = max(cells.values(), default=0)
    return {
        "metrics": _metrics(runs),
        "rows": [len(run.columns["step"]) for run in runs],
        "runs": [
            {
                "name": run.name,
                "folder": folder_link(run, home),
                "seed": str(run.seed),
                "state": run.state,
                "step": f"{run.step}/{run.steps}",
                "differs": {
                    key: config.get(key, "")
                    for key in usual
                    if config.get(key, "") != usual[key] and key != "seed"
                },
            }
            for run, config in zip(runs, configs, strict=True)
        ],
        "usual": usual,
        "scopes": scopes,
        "interval": [None, None, *(t_factor(n, CONFIDENCE) for n in range(2, most + 1))],
        "confidence": f"{100 * CONFIDENCE:.0f} %",
    }


def folder_link(run: RunPart, home: Path) -> str:
    """Relative address of a run's folder."""
    return "./" + quote(os.path.relpath(run.path, home), errors="replace") + "/"


def _metrics(runs: Sequence[RunPart]) -> dict[str, dict[str, str]]:
    known = {key: metric for topic in catalogue().values() for key, metric in topic.items()}
    measured = dict.fromkeys(key for run in runs for key in run.columns)
    nothing = [np.full_like(run.columns["step"], np.nan) for run in runs]
    return {
        key: {
            "is": TOTALS.get(key) or (known[key].meaning if key in known else ""),
            "unit": known[key].unit if key in known else "",
            "numbers": pack(
                np.concatenate(
                    [run.columns.get(key, nan) for run, nan in zip(runs, nothing, strict=True)]
                )
            ),
        }
        for key in dict.fromkeys([*TOTALS, *known, *measured])
        if key in measured
    }


def _texts(config: dict[str, Any]) -> dict[str, str]:
    return {
        key: "" if value is None else str(value) for key, value in flat(identity(config)).items()
    }


def _figure(part: FigurePart, runs: Sequence[RunPart]) -> dict[str, Any]:
    lines = [
        [part.arms.index(place.arm), part.columns.index(place.column), number]
        for number, run in enumerate(runs)
        for place in run.places
        if place.figure == part.name
    ]
    return _scope(part.name, part.arms, part.columns, lines)


def _every_run(runs: Sequence[RunPart]) -> dict[str, Any]:
    arms = sorted({run.method for run in runs})
    columns = sorted({run.schedule for run in runs})
    lines = [
        [arms.index(run.method), columns.index(run.schedule), number]
        for number, run in enumerate(runs)
    ]
    return _scope(EVERY_RUN, arms, columns, lines)


def _scope(
    name: str, arms: list[str], columns: list[str], lines: list[list[int]]
) -> dict[str, Any]:
    """arms: get the colours and dashes of figures."""
    found = [
        {
            "name": label,
            "color": look.color,
            "dash": [] if look.dash == SOLID else [LINE_WIDTH * each for each in look.dash[1]],
        }
        for label, look in looks(arms).items()
    ]
    return {"name": name, "columns": columns, "arms": found, "lines": lines}
