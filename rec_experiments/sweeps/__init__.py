"""Figures as sweeps, their jobs, and the states of these jobs."""

from rec_experiments.sweeps.figures import STATISTICS as STATISTICS
from rec_experiments.sweeps.figures import Panel as Panel
from rec_experiments.sweeps.figures import SetByArm as SetByArm
from rec_experiments.sweeps.figures import claim_rates as claim_rates
from rec_experiments.sweeps.figures import claim_seeds as claim_seeds
from rec_experiments.sweeps.figures import load_figure as load_figure
from rec_experiments.sweeps.figures import names as names
from rec_experiments.sweeps.figures import points as points
from rec_experiments.sweeps.jobs import jobs as jobs
from rec_experiments.sweeps.manifest import output_folder as output_folder
from rec_experiments.sweeps.manifest import read_manifest as read_manifest
