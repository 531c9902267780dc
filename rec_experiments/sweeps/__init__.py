"""Figures as sweeps, their jobs, and what has become of them.

python -m rec_experiments sweeps list | status | wait | resubmit FIGURE [overrides]
"""

from rec_experiments.sweeps.jobs import (
    PICTURES,
    STATISTICS,
    Figure,
    Job,
    Panel,
    Sweep,
    compose_jobs,
    distinct,
    expand,
    finished,
    gpus_of,
    jobs,
    load_figure,
    names,
    resolve,
    summary,
    sweep_of,
)
from rec_experiments.sweeps.state import ACTIVE, State, survey
from rec_experiments.sweeps.submission import Submission, prepare

__all__ = [
    "ACTIVE",
    "PICTURES",
    "STATISTICS",
    "Figure",
    "Job",
    "Panel",
    "State",
    "Submission",
    "Sweep",
    "compose_jobs",
    "distinct",
    "expand",
    "finished",
    "gpus_of",
    "jobs",
    "load_figure",
    "names",
    "prepare",
    "resolve",
    "summary",
    "survey",
    "sweep_of",
]
