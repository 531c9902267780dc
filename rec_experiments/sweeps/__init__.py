"""Figures as sweeps, their jobs, and the states of these jobs."""

from rec_experiments.sweeps.jobs import STATISTICS as STATISTICS
from rec_experiments.sweeps.jobs import Figure as Figure
from rec_experiments.sweeps.jobs import Job as Job
from rec_experiments.sweeps.jobs import Panel as Panel
from rec_experiments.sweeps.jobs import Sweep as Sweep
from rec_experiments.sweeps.jobs import checked as checked
from rec_experiments.sweeps.jobs import compose_jobs as compose_jobs
from rec_experiments.sweeps.jobs import distinct as distinct
from rec_experiments.sweeps.jobs import expand as expand
from rec_experiments.sweeps.jobs import finished as finished
from rec_experiments.sweeps.jobs import gpus_of as gpus_of
from rec_experiments.sweeps.jobs import jobs as jobs
from rec_experiments.sweeps.jobs import load_figure as load_figure
from rec_experiments.sweeps.jobs import names as names
from rec_experiments.sweeps.jobs import outline as outline
from rec_experiments.sweeps.jobs import points as points
from rec_experiments.sweeps.jobs import single_value as single_value
from rec_experiments.sweeps.jobs import summary as summary
from rec_experiments.sweeps.jobs import sweep_of as sweep_of
from rec_experiments.sweeps.state import ACTIVE as ACTIVE
from rec_experiments.sweeps.state import State as State
from rec_experiments.sweeps.state import survey as survey
from rec_experiments.sweeps.submission import Submission as Submission
from rec_experiments.sweeps.submission import prepare as prepare
from rec_experiments.sweeps.submission import root_of as root_of
