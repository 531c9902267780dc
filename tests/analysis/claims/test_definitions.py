"""What these tests lock: the claims say something, and what their sources say.

1. No claim is failed by the paper's own curves, and each can fail. The curves are those of
   paper_curves.yaml, as far as the papers' text describes them; one of them stands for all seeds.
2. Every endpoint finds its arms and columns in the sweeps; rates and seeds are fixed beforehand.
"""

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import resolve
from fabricated import figure_of

from rec_experiments import sweeps
from rec_experiments.analysis.claims import CLAIMS, settings
from rec_experiments.analysis.claims.decision import EQUAL_SEEDS, Direction, Outcome
from rec_experiments.analysis.claims.judge import Setting, judge

EVALUATIONS = 11  # of a run, evenly spaced over its steps, as in the miniature
SETTING = Setting(scale="the paper's curves")


@pytest.fixture(scope="module")
def curves():
    """The curves as figures with finished runs."""
    runs: dict[str, list[tuple]] = {}
    for curve in yaml.safe_load(Path(__file__).with_name("paper_curves.yaml").read_text()):
        points = curve["points"]
        steps = np.linspace(0, max(max(each) for each in points.values()), EVALUATIONS)
        values = {name: np.interp(steps, [*of], [*of.values()]) for name, of in points.items()}
        rows = [
            {"step": step, **{name: of[n] for name, of in values.items()}}
            for n, step in enumerate(steps)
        ]
        runs.setdefault(curve["figure"], []).extend(
            (arm, curve["column"], seed, "done", rows)
            for arm in curve["arms"]
            for seed in range(EQUAL_SEEDS)
        )
    return {name: figure_of(of_figure, name=name) for name, of_figure in runs.items()}


def matches(arm: str, patterns: str) -> bool:
    return any(fnmatchcase(arm, pattern) for pattern in patterns.split("|"))


def test_no_claim_is_failed_by_its_own_source(curves):
    found = {claim.id: judge(claim, curves, SETTING).outcome for claim in CLAIMS}
    assert set(found.values()) == {Outcome.supported}, found


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_every_claim_can_fail(claim, curves):
    """Where its arms are swapped; one that says alike or not lower, where its arm stays at 0."""
    data, end = dict(curves), claim.primary
    figure = data[end.figure]
    one, other = (
        next(arm for arm in figure.arms if matches(arm, pattern))
        for pattern in (end.arm, end.against)
    )
    steps = figure.steps.copy()
    here = steps["column"] == end.column
    if end.direction in (Direction.alike, Direction.not_lower):
        steps.loc[here & (steps["arm"] == one), end.metric] = 0.0
    else:
        swapped = {one: other, other: one}
        steps.loc[here, "arm"] = steps.loc[here, "arm"].replace(swapped)
    data[end.figure] = replace(figure, steps=steps)
    found = judge(claim, data, SETTING).outcome
    assert found in (Outcome.contradicted, Outcome.premise_not_met)


def test_rates_and_seeds_are_fixed_beforehand():
    for scale, rates in (("mini", [3e-5, 1e-4, 4.8e-5]), ("mini_chain", [3e-5, 4.8e-4, 6e-5])):
        found = settings(scale, [])
        first = found[0]
        assert [each.rate for each in found] == rates
        assert [each.own for each in found] == [True, False, False]
        assert all(list(each.seeds) == list(range(10, 20)) for each in found)
        assert resolve(f"setting={scale}/gsm8k")["optimizer"]["learning_rate"] == first.rate
    [typed] = settings("mini", ["optimizer.learning_rate=6e-5", "seed=0,1"])
    assert (typed.title, typed.seeds, typed.own) == ("mini", None, False)
    assert [each.title for each in settings("paper", [])] == ["paper"]


@pytest.mark.parametrize("scale", ["mini", "paper"])
@pytest.mark.parametrize("name", sorted({each.figure for c in CLAIMS for each in c.endpoints}))
def test_every_endpoint_finds_its_cells_in_the_sweep(name, scale):
    figure = sweeps.load_figure(name, [f"scale={scale}"])
    cells = {(p.label, p.heading) for p in sweeps.points(figure, [f"scale={scale}"])}
    for each in (each for claim in CLAIMS for each in claim.endpoints if each.figure == name):
        for arm in filter(None, [each.arm, each.against]):
            fits = {cell for cell in cells if matches(cell[0], arm) and cell[1] == each.column}
            assert len(fits) == 1, f"{name}: {arm} under {each.column}"
