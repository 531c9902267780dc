"""The papers' claims, each an executable check on the runs of several seeds.

definitions   the claims of arXiv 2509.24203 and their thresholds; other_papers: those of others
verdict       from the statistics of runs to a verdict
decision      when the values of several seeds decide
tables        verdicts as text, Markdown, terminal output and JSON
simulation    how often the checks report a difference that does not exist, or find one that does
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from rec_experiments import sweeps
from rec_experiments.analysis.claims.definitions import PAPER
from rec_experiments.analysis.claims.other_papers import OTHERS
from rec_experiments.analysis.claims.verdict import Verdict, judge
from rec_experiments.analysis.results.figure_data import FigureData, NoRuns, claim_seeds, collect

CLAIMS = PAPER + OTHERS
FIGURES = frozenset(name for claim in CLAIMS for name in claim.figures)


def read(
    names: Iterable[str], folders: list[Path] | None, overrides: list[str]
) -> dict[str, FigureData]:
    """Those of the figures that have runs, with all the seeds that claims need."""
    found = {}
    for name in names:
        try:
            found[name] = collect(name, folders, overrides, for_claims=True)
        except NoRuns:
            continue
    return found


def judged(scale: str, folders: list[Path] | None, overrides: list[str]) -> list[Verdict]:
    """A verdict on every claim from the runs of a scale. Raises UserError for a wrong override."""
    names = [name for name in sweeps.names() if name in FIGURES]
    return verdicts(read(names, folders, [f"scale={scale}", *overrides]), scale)


def verdicts(data_by_figure: Mapping[str, FigureData], scale: str) -> list[Verdict]:
    """A verdict on every claim, from the figures given; others count as not run."""
    return [judge(claim, data_by_figure, scale, claim_seeds(scale)) for claim in CLAIMS]


def verdicts_in(data: FigureData) -> list[Verdict]:
    """Verdicts on the claims that name the figure, from the parts that it shows alone. With fewer
    parts, a part is contradicted at a lower level."""
    parts = (claim.within(data.name) for claim in CLAIMS)
    return [judge(part, {data.name: data}, data.scale, data.claim_seeds) for part in parts if part]
