"""What these tests lock: the claims say something, and what their sources say.

1. No claim is failed by the paper's own curves, and each can fail.
2. Every endpoint finds its arms and columns in the sweeps; rates and seeds are fixed beforehand.
"""

from dataclasses import replace
from fnmatch import fnmatchcase

import paper_curves
import pytest
import yaml
from conftest import resolve

from rec_experiments import sweeps
from rec_experiments.analysis.claims import CLAIMS, settings
from rec_experiments.analysis.claims.decision import Direction, Outcome
from rec_experiments.analysis.claims.judge import judge

CURVES = yaml.safe_load(paper_curves.FILE.read_text(encoding="utf-8"))
SUPPORTED = {claim.id: Outcome.supported for claim in CLAIMS}


def matches(arm: str, patterns: str) -> bool:
    return any(fnmatchcase(arm, pattern) for pattern in patterns.split("|"))


def test_no_claim_is_failed_by_its_own_source():
    found = paper_curves.verdicts()
    assert {each.claim.id: each.outcome for each in found} == SUPPORTED


@pytest.fixture(scope="module")
def curves():
    return paper_curves.figures(CURVES)


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
    found = judge(claim, data, paper_curves.SETTING).outcome
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
