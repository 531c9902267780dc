"""The papers' own curves, as far as their text describes them, in the form of runs.

If a claim fails on its own source, its wording is wrong, so each claim was tried on these curves
first. The points are in published/curves.yaml; between them a curve is straight.
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

FILE = Path(__file__).parents[1] / "published" / "curves.yaml"
EVALUATIONS = 11  # of a run, evenly spaced over its steps, as in the miniature
SETTING = Setting(scale="the paper's curves")


def verdicts() -> list[Verdict]:
    """A verdict on every claim. One curve per arm stands for seeds that are all equal."""
    data = figures(yaml.safe_load(FILE.read_text(encoding="utf-8")))
    return [judge(claim, data, SETTING) for claim in CLAIMS]


def figures(curves: list[dict[str, Any]]) -> dict[str, FigureData]:
    """The curves as figures with finished runs."""
    runs: dict[str, list[Run]] = {}
    for curve in curves:
        about = {"column": curve["column"], "path": Path(), "state": "done"}
        runs.setdefault(curve["figure"], []).extend(
            Run(arm=arm, seed=seed, rows=_rows(curve["points"]), **about)
            for arm in curve["arms"]
            for seed in range(EQUAL_SEEDS)
        )
    return {
        name: FigureData(
            name=name, title="", caption="", scale="", claim_seeds=None, shown=[], columns=[],
            panels=[], arms=list(dict.fromkeys(run.arm for run in found)), runs=found,
        )
        for name, found in runs.items()
    }  # fmt: skip


def _rows(points: dict[str, dict[int, float]]) -> list[Row]:
    steps = np.linspace(0, max(max(each) for each in points.values()), EVALUATIONS)
    curves = {name: np.interp(steps, [*each], [*each.values()]) for name, each in points.items()}
    return [
        {"step": step, **{metric: values[at] for metric, values in curves.items()}}
        for at, step in enumerate(steps)
    ]
