"""Figures as sweeps, their jobs, and the states of these jobs."""

from rec_experiments.sweeps.figures import STATISTICS as STATISTICS
from rec_experiments.sweeps.figures import Figure as Figure
from rec_experiments.sweeps.figures import Panel as Panel
from rec_experiments.sweeps.figures import Point as Point
from rec_experiments.sweeps.figures import SetByArm as SetByArm
from rec_experiments.sweeps.figures import Sweep as Sweep
from rec_experiments.sweeps.figures import claim_rates as claim_rates
from rec_experiments.sweeps.figures import claim_seeds as claim_seeds
from rec_experiments.sweeps.figures import load_figure as load_figure
from rec_experiments.sweeps.figures import names as names
from rec_experiments.sweeps.figures import points as points
from rec_experiments.sweeps.figures import swept as swept
from rec_experiments.sweeps.jobs import Job as Job
from rec_experiments.sweeps.jobs import distinct as distinct
from rec_experiments.sweeps.jobs import finished as finished
from rec_experiments.sweeps.jobs import jobs as jobs
from rec_experiments.sweeps.manifest import multirun_name as multirun_name
from rec_experiments.sweeps.manifest import output_folder as output_folder
from rec_experiments.sweeps.manifest import read_manifest as read_manifest
from rec_experiments.sweeps.manifest import write_manifests as write_manifests
from rec_experiments.sweeps.state import State as State
from rec_experiments.sweeps.state import survey as survey
from rec_experiments.sweeps.submission import prepare as prepare
