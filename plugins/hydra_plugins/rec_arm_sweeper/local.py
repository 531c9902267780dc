"""A launcher for a few processes of one machine."""

import contextlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from hydra_plugins.rec_arm_sweeper._job import open_log
from hydra_plugins.rec_arm_sweeper._results import JobFailed, in_one_line, why_failed, without_hydra
from omegaconf import DictConfig, open_dict

PRELOAD = [
    "hydra_plugins.rec_arm_sweeper._preload",
    "matplotlib.backends.backend_agg",  # for the picture at the end of a run
    "matplotlib.figure",
]


class LocalLauncher(Launcher):
    """Runs up to `jobs` jobs at once, each in a process of its own that writes log.txt.

    Jobs share what they draw from the initial weights, in a folder that goes with the sweep. A run
    alone draws for itself, so two that are compared bit for bit were drawn apart.
    """

    def __init__(self, jobs: int):
        self.jobs = jobs

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        if self.jobs < 1:
            raise HydraException(f"hydra.launcher.jobs={self.jobs}: must be at least 1")
        self.hydra_context, self.task, self.config = hydra_context, task_function, config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from rec_experiments.runs.signals import on_stop

        with (
            on_stop(_end),
            tempfile.TemporaryDirectory(prefix="rec_draws_", ignore_cleanup_errors=True) as folder,
        ):
            self.draws = folder
            return self._launch(job_overrides, initial_job_idx)

    def _launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Whatever ends it early, the jobs are told to save their state and stop, and have ended
        when it does: then nobody writes where their draws are."""
        waiting = deque(range(len(job_overrides)))
        running: dict[Any, tuple[int, BaseProcess, float]] = {}
        returns: dict[int, JobReturn] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    index = waiting.popleft()
                    job = (list(job_overrides[index]), initial_job_idx + index)
                    connection, process = self._start(*job)
                    running[connection] = (index, process, time.monotonic())
                for ready in wait(list(running)):
                    index, process, started = running.pop(ready)
                    reason = _result(ready, process)
                    returns[index] = _returned(job_overrides[index], reason)
                    print(
                        f"[{len(returns)}/{len(job_overrides)}] {'failed' if reason else 'done'} "
                        f"in {time.monotonic() - started:.0f} s: {' '.join(job_overrides[index])}",
                        flush=True,
                    )
        finally:
            for _, process, _ in running.values():
                process.terminate()
            for _, process, _ in running.values():
                process.join()
        return [returns[index] for index in range(len(job_overrides))]

    def _start(self, overrides: list[str], number: int) -> tuple[Connection, BaseProcess]:
        """A forked process: its modules are loaded, but it shares no state with another job."""
        context = get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        ours, theirs = context.Pipe(duplex=False)
        payload = cloudpickle.dumps((self, overrides, number, Singleton.get_state()))
        process = context.Process(target=_job, args=(theirs, payload))
        process.start()
        theirs.close()
        return ours, process

    def run(self, overrides: list[str], number: int) -> JobReturn:
        """One job, in its own process, with its output in its run folder."""
        from rec_experiments.samplers import shared
        from rec_experiments.sweeps import resolve

        os.environ[shared.FOLDER] = self.draws  # a forked process has what the first one had
        config = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        _, path = resolve(without_hydra(config))
        # For the provenance of the run: the command that repeats it alone.
        sys.orig_argv = [sys.executable, "-m", "rec_experiments", *overrides]
        try:
            path.mkdir(parents=True, exist_ok=True)
            opened = open_log(path / "log.txt")
        except OSError as error:
            raise JobFailed(f"{error.filename}: cannot be written ({error.strerror})") from error
        with opened as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        return run_job(
            hydra_context=self.hydra_context,
            task_function=self.task,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )


def _end(number: int) -> None:
    """Leave the process, as Ctrl-C does."""
    from rec_experiments.errors import GOES_ON

    print(GOES_ON, file=sys.stderr)
    sys.exit(128 + number)


def _job(connection: Connection, payload: bytes) -> None:
    """Body of a job's process: sends why the job failed, or None."""
    launcher, overrides, number, singletons = cloudpickle.loads(payload)
    Singleton.set_state(singletons)
    setup_globals()
    try:
        reason = why_failed(launcher.run(overrides, number))
    except JobFailed as error:
        reason = str(error)
    except Exception as error:  # of the launcher's own: a run's errors come back as its result
        traceback.print_exc()
        reason = in_one_line(error)
    with contextlib.suppress(BrokenPipeError):  # the sweep was stopped, and has not waited
        connection.send(reason)


def _result(connection: Any, process: BaseProcess) -> str | None:
    """Wait for a job's end; why it failed, or None."""
    try:
        reason = connection.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    process.join()
    connection.close()
    return reason


def _returned(overrides: Sequence[str], reason: str | None) -> JobReturn:
    status = JobStatus.FAILED if reason else JobStatus.COMPLETED
    returned = JobReturn(overrides=overrides, status=status)
    returned.return_value = JobFailed(reason) if reason else None
    return returned
