"""A sweeper over arms × grid."""

import shlex
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from hydra_plugins.rec_arm_sweeper._job import failure
from omegaconf import DictConfig, open_dict

from rec_experiments.runs import checkout

if TYPE_CHECKING:
    from rec_experiments import sweeps

# Hydra's overrides that describe the sweep, not a job.
OF_THE_SWEEP = ("hydra.sweeper.", "hydra/sweeper=", "hydra.mode=")


class ArmSweeper(Sweeper):
    """Runs arms × grid: each distinct run once, and only those not done, running or queued.

    Every job is composed and checked before the first one starts. A failed job does not stop the
    others; the failed ones are listed at the end, and the exit code is 1. Jobs for SLURM are only
    submitted; `python -m rec_experiments sweeps status` shows their states.
    """

    hydra_context: HydraContext
    config: DictConfig
    launcher: Any

    def __init__(self, **node: Any):
        self.node = node  # hydra.sweeper as composed

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        overrides = config.hydra.overrides  # a job is composed without those of the sweep
        overrides.hydra = [line for line in overrides.hydra if not line.startswith(OF_THE_SWEEP)]
        self.hydra_context, self.config, self.task = hydra_context, config, task_function
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        from rec_experiments import sweeps  # Hydra imports every plugin, so not at the top
        from rec_experiments.errors import UserError

        try:
            name = self.config.hydra.runtime.choices.get("sweep")
            figure = sweeps.figure_of(name, self.node) if name else sweeps.sweep_of(self.node)
            points = sweeps.expand(figure, arguments)
            heading = figure.heading if isinstance(figure, sweeps.Figure) else lambda point: ""
            composed = sweeps.by_choices(self._compose)
            jobs = sweeps.compose_jobs(
                points, lambda lines: sweeps.checked(composed(lines)), heading
            )
            runs = sweeps.distinct(jobs)
            states = sweeps.survey(runs.values())
            name = name or sweeps.multirun_name(arguments)
            manifests = sweeps.write_manifests(name, jobs)
            print(_found(states.values()), flush=True)
            track([job for path, job in runs.items() if states[path].name == "done"])
            inactive = ("done", *sweeps.ACTIVE)
            waiting = [job for path, job in runs.items() if states[path].name not in inactive]
            if waiting and checkout.is_dirty():
                print("the checkout has uncommitted changes; provenance.json records the diff")
            if waiting and hasattr(self.launcher, "submit"):
                self._submit(waiting)
                return
            if waiting:
                self._run(waiting)
            print("manifest ", *manifests)
            of_figure = self._of_figure() or [name]
            print("next      python -m rec_experiments figures", shlex.join(of_figure))
        except UserError as error:
            raise HydraException(str(error)) from error

    def _compose(self, overrides: list[str]) -> DictConfig:
        config = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(config):
            del config["hydra"]
        return config

    def _submit(self, waiting: list["sweeps.Job"]) -> None:
        """Submit the jobs, and print how to follow them."""
        of_figure = self._of_figure()
        submission = self.launcher.submit(of_figure[0] if of_figure else "sweep", waiting)
        status = shlex.join(of_figure or [str(submission.folder)])
        print(
            f"submitted {len(waiting)} job{'s' * (len(waiting) > 1)} as {submission.name}",
            f"  state   python -m rec_experiments sweeps status {status}",
            f"  logs    log.txt in each run folder; SLURM's own in {submission.folder}",
            f"  cancel  scancel --name={submission.name}",
            sep="\n",
        )

    def _of_figure(self) -> list[str]:
        """The figure and the overrides that select its runs; [] if the sweep is no figure's."""
        figure = self.config.hydra.runtime.choices.get("sweep")
        left_out = ("-m", "--multirun", f"sweep={figure}")
        return [figure, *(word for word in sys.argv[1:] if word not in left_out)] if figure else []

    def _run(self, waiting: list["sweeps.Job"]) -> None:
        """Run the jobs and wait for them. Exits with 1 if one failed."""
        from rec_experiments import sweeps
        from rec_experiments.errors import ELSEWHERE, printable

        if isinstance(self.launcher, BasicLauncher):  # in this process
            reasons = [failure(self.task, job) for job in waiting]
        else:
            reasons = self.launcher.run(waiting)
        unfinished = [
            pair for pair in zip(waiting, reasons, strict=True) if not sweeps.finished(pair[0])
        ]
        failed = [
            f"{job.path}: {reason or 'ended without an error, but its run is not done'}"
            for job, reason in unfinished
            if not (reason and reason.endswith(ELSEWHERE))
        ]
        elsewhere = len(unfinished) - len(failed)
        print(
            f"{len(waiting) - len(unfinished)} done, {len(failed)} failed"
            + (f", {elsewhere} running in another process" if elsewhere else ""),
            flush=True,
        )
        if failed:
            print("failed:", *map(printable, failed), sep="\n  ", file=sys.stderr)
            sys.exit(1)


def _found(states: Iterable["sweeps.State"]) -> str:
    """One line on the runs that exist already."""
    from rec_experiments import sweeps

    found = list(states)
    names = [state.name for state in found]
    others = sum(bool(state.release) for state in found)
    active = sum(name in sweeps.ACTIVE for name in names)
    return (
        f"{len(found)} runs, {names.count('done')} already finished"
        + (f" ({others} by another release; remake=true repeats them)" if others else "")
        + (f", {active} queued or running" if active else "")
    )


def track(done: list["sweeps.Job"]) -> None:
    """Send finished runs to the chosen tracker, unless it has them.

    Raises UserError for a run that cannot be read or a tracker that is missing.
    """
    from rec_experiments.config import schema
    from rec_experiments.config.experiment import Experiment
    from rec_experiments.config.labels import tracked_name
    from rec_experiments.runs.run_folder import RunFolder
    from rec_experiments.tracking.trackers import track_finished
    from rec_experiments.types import class_name

    sent = []
    for job in done:
        if class_name(job.config["tracking"]) != "NoTracking":
            tracking = schema.build(schema.restore(job.config, job.overrides), Experiment).tracking
            folder = RunFolder(job.path)
            name = tracked_name(job.config, folder.command(), job.path)
            sent.append(track_finished(tracking, name, job.path, folder.metrics(), job.config))
    if number := sum(map(bool, sent)):
        print(f"tracked {number} runs that were already finished")
        print(*dict.fromkeys(line for lines in sent for line in lines), sep="\n", flush=True)
