"""A sweeper over arms × grid."""

import shlex
import sys
import traceback
from typing import TYPE_CHECKING, Any

from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from hydra_plugins.rec_arm_sweeper._results import Contained, in_one_line, why_failed, without_hydra
from omegaconf import DictConfig

if TYPE_CHECKING:
    from rec_experiments import sweeps

# Hydra's overrides that shape the sweep; a job is composed without them.
OF_THE_SWEEP = ("hydra.sweeper.", "hydra/sweeper=", "hydra.mode=")


def track(done: list["sweeps.Job"]) -> None:
    """Send runs that are finished to the tracker that is chosen now, as far as it has them not.

    Raises UserError for one that cannot be read, or a tracker that is not there.
    """
    from rec_experiments.config import schema
    from rec_experiments.config.experiment import Experiment
    from rec_experiments.runs.run_folder import RunFolder
    from rec_experiments.tracking.trackers import track_finished

    said = []
    for job in done:
        if job.config["tracking"]["kind"] != "none":
            tracking = schema.build(schema.restore(job.config), Experiment).tracking
            rows = RunFolder(job.path).metrics()
            said.append(track_finished(tracking, job.path, rows, job.config))
    if number := sum(map(bool, said)):
        were, are = ("were", "are") if number > 1 else ("was", "is")
        print(f"{number} of the finished runs {were} not tracked before, and {are} now")
        print(*dict.fromkeys(line for lines in said for line in lines), sep="\n", flush=True)


class ArmSweeper(Sweeper):
    """Runs arms × grid: each distinct run once, and only what is not done, running or queued.

    Every job is composed and checked before the first one starts. A failed job does not stop the
    others; at the end the failed ones are named and the process exits with 1. Jobs that go to
    SLURM are only submitted: `python -m rec_experiments sweeps` tells what becomes of them.
    """

    hydra_context: HydraContext
    config: DictConfig
    launcher: Launcher

    def __init__(self, **node: Any):
        self.node = node  # hydra.sweeper as composed

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        hydra_overrides = config.hydra.overrides.hydra
        config.hydra.overrides.hydra = [
            line for line in hydra_overrides if not line.startswith(OF_THE_SWEEP)
        ]
        self.hydra_context, self.config = hydra_context, config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=Contained(task_function), config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        from rec_experiments import sweeps  # not at the top: Hydra imports every plugin
        from rec_experiments.errors import UserError
        from rec_experiments.runs import checkout

        try:
            points = sweeps.expand(sweeps.sweep_of(self.node), arguments)
            runs = list(sweeps.distinct(sweeps.compose_jobs(points, self._compose)).values())
            found = sweeps.survey(runs).values()
            states = [state.name for state in found]
            others = sum(bool(state.made_by) for state in found)
            done, active = states.count("done"), sum(name in sweeps.ACTIVE for name in states)
            print(
                f"{len(runs)} runs, {done} finished before"
                + (f" ({others} by other code: remake=true makes those again)" if others else "")
                + (f", {active} queued or running" if active else ""),
                flush=True,
            )
            track([job for job, name in zip(runs, states, strict=True) if name == "done"])
            waiting = [
                job
                for job, name in zip(runs, states, strict=True)
                if name != "done" and name not in sweeps.ACTIVE
            ]
            if waiting and checkout.is_dirty():
                print(
                    "the checkout has uncommitted changes; provenance.json keeps all but new files "
                    "and files that look secret"
                )
            if waiting and hasattr(self.launcher, "submit"):
                self._submit(waiting)
                return
            if waiting:
                self._run(waiting)
            if of_figure := self._of_figure():
                print("next      python -m rec_experiments figures", shlex.join(of_figure))
        except UserError as error:
            raise HydraException(str(error)) from error

    def _compose(self, overrides: list[str]) -> DictConfig:
        return without_hydra(
            self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        )

    def _submit(self, waiting: list["sweeps.Job"]) -> None:
        """Hand the jobs over and say where to look."""
        of_figure = self._of_figure()
        submission = self.launcher.submit(of_figure[0] if of_figure else "sweep", waiting)
        status = shlex.join(of_figure or [str(submission.folder)])
        print(
            f"submitted {len(waiting)} job{'s' * (len(waiting) > 1)} as {submission.name}; "
            "nothing here needs to go on",
            f"  state   python -m rec_experiments sweeps status {status}",
            f"  logs    log.txt in each run folder; SLURM's own in {submission.folder}",
            f"  cancel  scancel --name={submission.name}",
            sep="\n",
        )

    def _of_figure(self) -> list[str]:
        """The figure and the overrides that choose its runs, [] for a sweep that is none."""
        figure = self.config.hydra.runtime.choices.get("sweep")
        left_out = ("-m", "--multirun", f"sweep={figure}")
        return [figure, *(word for word in sys.argv[1:] if word not in left_out)] if figure else []

    def _run(self, waiting: list["sweeps.Job"]) -> None:
        """Launch the jobs, wait for them, and exit with 1 if one failed."""
        from rec_experiments import sweeps
        from rec_experiments.errors import printable

        reasons = self._launch([job.overrides for job in waiting])
        failed = [
            f"{job.path}: {reason}"
            for job, reason in zip(waiting, reasons, strict=True)
            if not sweeps.finished(job)  # the run's folder decides, not what the launcher saw
        ]
        print(f"{len(waiting) - len(failed)} done, {len(failed)} failed", flush=True)
        if failed:
            print("failed:", *map(printable, failed), sep="\n  ", file=sys.stderr)
            sys.exit(1)

    def _launch(self, batch: list[list[str]]) -> list[str]:
        """Run the jobs. For each, why it failed, as far as the launcher knows."""
        try:
            returns = self.launcher.launch(batch, initial_job_idx=0)
        except Exception as error:  # a launcher's own, as for a job that its cluster killed
            traceback.print_exc()
            return [f"no result; the launcher stopped with {in_one_line(error)}"] * len(batch)
        return [
            why_failed(job) or "ended without an error, but its run is not done" for job in returns
        ]
