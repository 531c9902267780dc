"""The papers' own curves, as far as their text describes them, in the form of runs.

If a claim fails on its own source, its wording is wrong, so each claim was tried on these curves
first. The points are in paper_curves.yaml; between them a curve is straight.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import yaml

from rec_experiments.analysis.claims.decision import EQUAL_SEEDS
from rec_experiments.analysis.claims.judge import CLAIMS, Setting, Verdict, judge
from rec_experiments.analysis.results.figure import FigureRuns

FILE = Path(__file__).with_suffix(".yaml")
EVALUATIONS = 11  # of a run, evenly spaced over its steps, as in the miniature
SETTING = Setting(scale="the paper's curves")


def verdicts() -> list[Verdict]:
    """A verdict on every claim. One curve per arm stands for seeds that are all equal."""
    data = figures(yaml.load(FILE.read_text(encoding="utf-8"), yaml.CSafeLoader))
    return [judge(claim, data, SETTING) for claim in CLAIMS]


def figures(curves: list[dict[str, Any]]) -> dict[str, FigureRuns]:
    """The curves as figures with finished runs."""
    parts = [
        _steps(curve["points"]).assign(
            figure=curve["figure"], arm=arm, column=curve["column"], seed=seed,
            run=f"{curve['figure']}/{arm}/{curve['column']}/{seed}", state="done",
        )
        for curve in curves
        for arm in curve["arms"]
        for seed in range(EQUAL_SEEDS)
    ]  # fmt: skip
    steps = pandas.concat(parts, ignore_index=True)
    return {
        str(name): FigureRuns(
            name=str(name),
            runs=rows.drop_duplicates("run").assign(release=pandas.NA),
            steps=rows,
        )
        for name, rows in steps.groupby("figure", sort=False)
    }


def _steps(points: dict[str, dict[int, float]]) -> pandas.DataFrame:
    steps = np.linspace(0, max(max(each) for each in points.values()), EVALUATIONS)
    curves = {name: np.interp(steps, [*each], [*each.values()]) for name, each in points.items()}
    return pandas.DataFrame({"step": steps, **curves})
