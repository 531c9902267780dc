"""The regime of a run: how far the policy moves between generating and using a sample, compared
with published runs.

quantities  numbers of one run
arms        the runs over which a row of a table is a mean
ranges      published values and targets, and whether an arm meets them
sections    the numbers of arms, quantity by quantity
tables      the sections as text, Markdown and JSON
alarms      signs that a run may be about to collapse
"""

import functools

from rec_experiments.analysis.regime import tables
from rec_experiments.analysis.regime.arms import Arm, arms_in
from rec_experiments.analysis.regime.ranges import REFERENCE_VALUES, Published, load
from rec_experiments.analysis.regime.sections import Section, sections
from rec_experiments.analysis.results.figure_data import FigureData

__all__ = ["of_arms", "of_figure", "tables"]


def of_arms(arms: list[Arm]) -> list[Section]:
    """The numbers of arms beside published ones."""
    return sections(arms, _published())


@functools.cache  # a report needs them for each figure
def _published() -> list[Published]:
    return load(REFERENCE_VALUES, Published)


def of_figure(data: FigureData) -> list[Section]:
    """The numbers of a figure's arms beside published ones."""
    return of_arms(arms_in(data))
