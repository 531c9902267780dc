"""What the papers claim, each claim an executable check on run data over seeds.

definitions   the claims of the paper; other_papers: of others
thresholds    the ranges that they ask for, with the reason of each
decision      when numbers over seeds decide
engine        from the statistics of runs to a verdict
tables        verdicts for people and for files
simulation    how often the checks decide for a difference that is not there, and find one that is
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from rec_experiments import sweeps
from rec_experiments.analysis.claims.definitions import PAPER
from rec_experiments.analysis.claims.engine import Verdict, judge
from rec_experiments.analysis.claims.other_papers import OTHERS
from rec_experiments.analysis.results.collect import NoRuns, claim_seeds, collect, folders_of
from rec_experiments.analysis.results.remembered import remembered
from rec_experiments.analysis.results.runs import FigureData

CLAIMS = PAPER + OTHERS
FIGURES = frozenset(name for claim in CLAIMS for name in claim.figures)  # that any claim reads


def read(
    names: Iterable[str], folders: list[Path] | None, overrides: list[str]
) -> dict[str, FigureData]:
    """The figures among `names` that have runs, with all the seeds that claims need."""
    found = {}
    for name in names:
        try:
            found[name] = collect(name, folders, overrides, for_claims=True)
        except NoRuns:
            continue
    return found


def judged(scale: str, folders: list[Path] | None, overrides: list[str]) -> list[Verdict]:
    """A verdict on every claim from the runs at a scale. Raises UserError for a wrong override."""
    names = [name for name in sweeps.names() if name in FIGURES]
    lines = [f"scale={scale}", *overrides]
    return remembered(
        "claims",
        [scale, folders, lines],
        folders_of(names, folders, lines, for_claims=True),
        lambda: verdicts(read(names, folders, lines), scale),
    )


def verdicts(data_by_figure: Mapping[str, FigureData], scale: str) -> list[Verdict]:
    """A verdict on every claim, from the figures whose runs are at hand; {} is allowed."""
    return [judge(claim, data_by_figure, scale, claim_seeds(scale)) for claim in CLAIMS]


def verdicts_in(data: FigureData) -> list[Verdict]:
    """Verdicts on the claims that name the figure, each on the parts that the figure shows, as if
    these were all: fewer parts are contradicted at a lower level."""
    parts = (claim.within(data.name) for claim in CLAIMS)
    return [judge(part, {data.name: data}, data.scale, data.claim_seeds) for part in parts if part]
