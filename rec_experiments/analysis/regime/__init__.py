"""The regime of a run: how far the policy moves between drawing and using a sample, and how that
compares with published runs. Reads run folders, nothing else.

quantities  from the rows of one run to one number
arms        the runs that a row of a table is the mean of
expected    published values and targets, and where an arm lies beside them
blocks      the numbers of arms, quantity by quantity
tables      the same for people and for programs
"""

import functools

from rec_experiments.analysis.regime import tables
from rec_experiments.analysis.regime.arms import Arm, arms_in
from rec_experiments.analysis.regime.ranges import REFERENCE_VALUES, Published, load
from rec_experiments.analysis.regime.sections import Section, sections
from rec_experiments.analysis.results.figure_data import FigureData

__all__ = ["of_arms", "of_figure", "tables"]


def of_arms(arms: list[Arm]) -> list[Section]:
    """Their numbers beside published ones."""
    return sections(arms, _published())


@functools.cache  # a report asks for them with each figure
def _published() -> list[Published]:
    return load(REFERENCE_VALUES, Published)


def of_figure(data: FigureData) -> list[Section]:
    """The numbers of a figure's arms beside published ones."""
    return of_arms(arms_in(data))
