"""The papers' own curves, as far as their text describes them, in the form of runs.

A claim that its own source fails is worded wrongly, so each was tried on these first. The points
are in paper_curves.yaml; between them a curve is straight.
"""

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rec_experiments.analysis.claims.decision import EQUAL_SEEDS
from rec_experiments.analysis.claims.definitions import CLAIMS
from rec_experiments.analysis.claims.verdict import Setting, Verdict, judge
from rec_experiments.analysis.results.figure_data import FigureData
from rec_experiments.analysis.results.runs import Row, Run

FILE = Path(__file__).with_suffix(".yaml")
EVALUATIONS = 11  # of a run, evenly spaced over its steps, as in the miniature
SETTING = Setting(scale="the paper's curves")


def verdicts() -> list[Verdict]:
    """A verdict on every claim. One curve per arm stands for seeds that are all equal."""
    data = figures(yaml.safe_load(FILE.read_text(encoding="utf-8")))
    return [judge(claim, data, SETTING) for claim in CLAIMS]


def figures(curves: list[dict[str, Any]]) -> dict[str, FigureData]:
    """The curves as figures with finished runs."""
    cells: dict[tuple[str, str, str], list[Row]] = {}
    for curve in curves:
        for arm in curve["arms"]:
            rows = _rows(curve["metric"], curve["points"])
            cell = cells.setdefault((curve["figure"], curve["column"], arm), rows)
            for kept, row in zip(cell, rows, strict=True):
                kept.update(row)
    return {figure: _figure(figure, cells) for figure, _, _ in cells}


def _rows(metric: str, points: dict[int, float]) -> list[Row]:
    steps = np.linspace(0, max(points), EVALUATIONS)
    values = np.interp(steps, list(points), list(points.values()))
    return [{"step": step, metric: value} for step, value in zip(steps, values, strict=True)]


def _figure(name: str, cells: dict[tuple[str, str, str], list[Row]]) -> FigureData:
    runs = [
        Run(arm=arm, column=column, seed=seed, path=Path(), state="done", rows=rows)
        for (figure, column, arm), rows in cells.items()
        for seed in range(EQUAL_SEEDS)
        if figure == name
    ]
    return FigureData(
        name=name, title="", caption="", scale="", claim_seeds=None, shown=[],
        arms=list(dict.fromkeys(run.arm for run in runs)), columns=[], panels=[], runs=runs,
    )  # fmt: skip
