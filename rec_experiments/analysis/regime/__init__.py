"""The regime of a run: how far the policy moves between generating and using a sample, compared
with published runs.

quantities  numbers of one run
arms        the runs over which a row of a table is a mean
ranges      published values, and where an arm lies beside them
sections    the numbers of arms, quantity by quantity
tables      the sections as text and as plain values
alarms      signs that a run may be about to collapse
"""

from rec_experiments.analysis.regime import tables
from rec_experiments.analysis.regime.arms import Arm, arms_in
from rec_experiments.analysis.regime.ranges import published_values
from rec_experiments.analysis.regime.sections import Section, sections
from rec_experiments.analysis.results.figure_data import FigureData

__all__ = ["of_arms", "of_figure", "tables"]


def of_arms(arms: list[Arm]) -> list[Section]:
    """The numbers of arms beside published ones."""
    return sections(arms, published_values())


def of_figure(data: FigureData) -> list[Section]:
    """The numbers of a figure's arms beside published ones."""
    return of_arms(arms_in(data))
