"""A launcher that submits the jobs of a sweep to SLURM as one array and returns."""

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from hydra_plugins.rec_arm_sweeper._job import IGNORE_USR2, supervise
from omegaconf import DictConfig

if TYPE_CHECKING:
    from rec_experiments import sweeps


@contextlib.contextmanager
def outside_of_jobs() -> Iterator[None]:
    """Hide the variables of the job that this process may be in. The submitted jobs would inherit
    them, and SLURM refuses those that contradict their own resources."""
    inherited = {key: os.environ[key] for key in os.environ if key.startswith(("SLURM_", "SRUN_"))}
    inherited.pop("SLURM_CONF", None)
    for key in inherited:
        del os.environ[key]
    try:
        yield
    finally:
        os.environ.update(inherited)


class SlurmLauncher(Launcher):
    """Submits one array for a whole sweep. conf/hydra/launcher/slurm.yaml explains the values.

    site: values that the others refer to. resources: keywords of submitit's
    SlurmExecutor.update_parameters.
    """

    def __init__(
        self,
        site: dict[str, Any],
        setup: list[str],
        container: str | None,
        options: dict[str, Any],
        **resources: Any,
    ):
        self.lines, self.options = setup, options
        self.container = shlex.split(container or "")
        self.resources = {key: value for key, value in resources.items() if value is not None}

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.choice = str(config.hydra.runtime.choices["hydra/launcher"])

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        raise HydraException(f"hydra/launcher={self.choice}: needs hydra/sweeper=arms")

    def submit(self, title: str, jobs: list["sweeps.Job"]) -> "sweeps.Submission":
        """Submit the jobs with one call of sbatch. Raises UserError if SLURM rejects them."""
        import submitit

        from rec_experiments import sweeps
        from rec_experiments.errors import UserError, first_line

        if shutil.which("sbatch") is None or shutil.which("srun") is None:
            raise UserError(f"hydra/launcher={self.choice}: sbatch not found; use a login node")
        resources = self._for_gpus(max(sweeps.gpus_of(job.config) for job in jobs))
        if "%" in str(output := sweeps.root_of(jobs[0]).parent):
            raise UserError(f"output_dir={output}: SLURM replaces % in names of its log files")
        submission = sweeps.prepare(title, jobs)
        python = shlex.join([*IGNORE_USR2, sys.executable])  # until submitit handles it
        executor = submitit.SlurmExecutor(submission.folder, python=python)
        try:
            executor.update_parameters(
                job_name=submission.name,
                setup=[*self.lines, *self._environment(submission)],
                stderr_to_stdout=True,
                additional_parameters={"requeue": True, **self.options},
                **resources,
            )
            quiet = contextlib.redirect_stderr(io.StringIO())  # the error repeats it
            with quiet, outside_of_jobs():
                executor.map_array(
                    supervise,
                    [self._command(submission, number) for number in range(len(jobs))],
                    [str(job.path / "log.txt") for job in submission.jobs],
                    [self.resources["signal_delay_s"]] * len(jobs),
                    [str(submission.folder / f"requeued_{n}") for n in range(len(jobs))],
                )
        except (ValueError, submitit.core.utils.FailedJobError) as error:
            shutil.rmtree(submission.folder)
            reason = first_line(error).removeprefix("sbatch: error: ")
            if "Invalid job array" in reason:
                reason += (
                    f"; this cluster may accept fewer than {len(jobs)} jobs in one array "
                    "(MaxArraySize of `scontrol show config`): submit some at a time, with "
                    "seed=0,1 or hydra.sweeper.only=[…]"
                )
            raise UserError(f"hydra/launcher={self.choice}: {reason}") from error
        return submission

    def _for_gpus(self, needed: int) -> dict[str, Any]:
        """The resources for a run on `needed` GPUs: those of one GPU times `needed`, or a whole
        node. Raises UserError if the launcher has too few GPUs."""
        from rec_experiments.errors import UserError

        kind, _, number = str(self.resources.get("gpus_per_node", 0)).rpartition(":")
        given = int(number) if number.isdecimal() else needed  # sbatch reports a bad number
        if given == 1 and needed > 1:
            asks: dict[str, Any] = {"gpus_per_node": f"{kind}:{needed}" if kind else needed}
            if "cpus_per_task" in self.resources:
                asks["cpus_per_task"] = needed * self.resources["cpus_per_task"]
            if found := re.fullmatch(r"(?i)(\d+)([KMGT]?B?)", str(self.resources.get("mem"))):
                asks["mem"] = f"{needed * int(found[1])}{found[2]}"
            return {**self.resources, **asks}
        if given < needed:
            raise UserError(
                f"hydra/launcher={self.choice}: gives a job {given} GPUs, but a run needs "
                f"{needed}; use hydra/launcher=slurm, or another gpus=…"
            )
        return self.resources

    def _environment(self, submission: "sweeps.Submission") -> list[str]:
        """Lines of the job's script: Python imports the copied code."""
        return [
            f"export PYTHONPATH={shlex.quote(str(submission.code))}${{PYTHONPATH:+:$PYTHONPATH}}",
            "export PYTHONSAFEPATH=1",  # and not from the working directory
            f"export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={self.resources['signal_delay_s']}",
        ]

    def _command(self, submission: "sweeps.Submission", number: int) -> list[str]:
        """The command of a job: under torchrun for several ranks."""
        ranks = submission.jobs[number].config.get("ranks", 1)
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        return [
            *self.container,
            sys.executable,
            *(torchrun if ranks > 1 else []),
            *("-m", "rec_experiments.cli.run_job", str(submission.folder), str(number)),
        ]
