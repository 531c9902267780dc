"""What the papers claim, each claim an executable check on run data over seeds.

definitions  the claims, their thresholds and the reason of each
engine       from the statistics of runs over seeds to a verdict
tables       verdicts for people and for files
"""

from collections.abc import Mapping

from rec_experiments.claims.definitions import CLAIMS
from rec_experiments.claims.engine import Verdict, judge
from rec_experiments.results.runs import FigureData


def verdicts(data_by_figure: Mapping[str, FigureData]) -> list[Verdict]:
    """A verdict on every claim, from the figures whose runs are at hand; {} is allowed."""
    return [judge(claim, data_by_figure) for claim in CLAIMS]


def verdicts_in(data: FigureData) -> list[Verdict]:
    """Verdicts on the claims that name the figure, each on the parts that the figure shows."""
    parts = (claim.within(data.name) for claim in CLAIMS)
    return [judge(part, {data.name: data}) for part in parts if part]
