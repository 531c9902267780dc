"""The jobs of a sweep as one SLURM array."""

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
from typing import Any

import submitit
from submitit.helpers import clean_env, environment_variables

from rec_experiments.common.errors import UserError, first_line
from rec_experiments.config.labels import gpus_of
from rec_experiments.sweeps.jobs import Job, output_of
from rec_experiments.sweeps.submission import Submission, prepare
from rec_experiments.sweeps.supervisor import IGNORE_USR2, Supervisor

NO_LIMIT = 1_000_000  # of submitit's count of time limits: the supervisor looks at checkpoints
OF_SBATCH = ("SLURM_CONF", "SBATCH_")  # variables that submitted jobs need


class SlurmLauncher:
    """Submits one array for a whole sweep, and does not wait for it.

    conf/hydra/launcher/slurm.yaml explains the values. name: of the choice there. site: values that
    the others refer to. resources: keywords of submitit's SlurmExecutor.update_parameters. Raises
    UserError for a value of another kind.
    """

    def __init__(
        self,
        site: dict[str, Any],
        setup: list[str],
        container: str | None,
        options: dict[str, Any],
        name: str = "slurm",
        **resources: Any,
    ):
        if not isinstance(setup, list):
            raise UserError(f"hydra.launcher.setup={setup}: must be a list of shell lines")
        if not isinstance(options, dict):
            raise UserError(f"hydra.launcher.options={options}: must be a mapping")
        if not isinstance(container, str | None):
            raise UserError(f"hydra.launcher.container={container}: must be a prefix of a command")
        self.lines, self.options, self.name = setup, options, name
        self.container = shlex.split(container or "")
        self.resources = {key: value for key, value in resources.items() if value is not None}

    def submit(self, title: str, jobs: list[Job]) -> Submission:
        """Submit the jobs with one call of sbatch. Raises UserError if SLURM rejects them."""
        if shutil.which("sbatch") is None or shutil.which("srun") is None:
            raise UserError(f"hydra/launcher={self.name}: sbatch not found; use a login node")
        resources = self._for_gpus(max(gpus_of(job.config) for job in jobs))
        if "%" in str(output := output_of(jobs[0]).absolute()):
            raise UserError(f"output_dir={output}: SLURM replaces % in names of its log files")
        submission = prepare(title, jobs)
        python = shlex.join([*IGNORE_USR2, sys.executable])  # until submitit handles it
        executor = submitit.SlurmExecutor(
            submission.folder, max_num_timeout=NO_LIMIT, python=python
        )
        code, notice = shlex.quote(str(submission.code)), self.resources["signal_delay_s"]
        environment = [
            f"export PYTHONPATH={code}${{PYTHONPATH:+:$PYTHONPATH}}",
            "export PYTHONSAFEPATH=1",  # and not from the working directory
            f"export TORCH_ELASTIC_SHUTDOWN_TIMEOUT={notice}",
        ]
        quiet = contextlib.redirect_stderr(io.StringIO())  # the error repeats it
        kept = {key: value for key, value in os.environ.items() if key.startswith(OF_SBATCH)}
        try:
            executor.update_parameters(
                job_name=submission.name,
                setup=[*self.lines, *environment],
                stderr_to_stdout=True,
                additional_parameters={"requeue": True, **self.options},
                **resources,
            )
            with quiet, clean_env(), environment_variables(**kept):
                executor.map_array(
                    Supervisor(notice),
                    [self._command(submission, number) for number in range(len(jobs))],
                    [str(job.path / "log.txt") for job in submission.jobs],
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
            raise UserError(f"hydra/launcher={self.name}: {reason}") from error
        return submission

    def _for_gpus(self, needed: int) -> dict[str, Any]:
        """The resources for a run on `needed` GPUs: those of one GPU times `needed`, or a whole
        node. Raises UserError if the launcher has too few GPUs."""
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
                f"hydra/launcher={self.name}: gives a job {given} GPUs, but a run needs "
                f"{needed}; use hydra/launcher=slurm, or another gpus=…"
            )
        return self.resources

    def _command(self, submission: Submission, number: int) -> list[str]:
        """The command of a job: under torchrun for several ranks."""
        ranks = submission.jobs[number].config["ranks"]
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        return [
            *self.container,
            sys.executable,
            *(torchrun if ranks > 1 else []),
            *("-m", "rec_experiments.cli.run_job", str(submission.folder), str(number)),
        ]
