"""Hydra plugins: a sweeper over arms × grid, and a launcher for a few processes of one machine.

They live here because Hydra takes plugins from the namespace hydra_plugins only. What the jobs of a
sweep are is said by rec_experiments.sweeps.
"""

import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict

# Imported once, before the jobs' processes are forked: most of a short job's start is importing.
PRELOAD = [
    "rec_experiments.cli",
    "rec_experiments.prepare",
    "rec_experiments.train",
    "matplotlib.backends.backend_agg",  # for the picture at the end of a run
    "matplotlib.figure",
]
# Hydra's overrides that shape the sweep; a job is composed without them.
OF_THE_SWEEP = ("hydra.sweeper.", "hydra/sweeper=", "hydra.mode=")


class ArmSweeper(Sweeper):
    """Runs arms × grid: each distinct run once, finished ones not again.

    Every job is composed and checked before the first one starts. A failed job does not stop the
    others; at the end the failed ones are named and the process exits with 1.
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
        from rec_experiments import sweeps  # not at the top: Hydra imports plugins at every start
        from rec_experiments.types import UserError

        try:
            points = sweeps.expand(sweeps.sweep_of(self.node), arguments)
            runs = list(sweeps.distinct(sweeps.compose_jobs(points, self._compose)).values())
        except UserError as error:
            raise HydraException(str(error)) from error
        waiting = [job for job in runs if not sweeps.finished(job)]
        print(f"{len(runs)} runs, {len(runs) - len(waiting)} finished before", flush=True)
        if not waiting:
            return
        reasons = self._launch([job.overrides for job in waiting])
        failed = [
            f"{job.path}: {reason}"
            for job, reason in zip(waiting, reasons, strict=True)
            if not sweeps.finished(job)  # the run's folder decides, not what the launcher saw
        ]
        print(f"{len(waiting) - len(failed)} done, {len(failed)} failed", flush=True)
        if failed:
            print("failed:", *failed, sep="\n  ", file=sys.stderr)
            sys.exit(1)

    def _compose(self, overrides: list[str]) -> DictConfig:
        return _without_hydra(
            self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        )

    def _launch(self, batch: list[list[str]]) -> list[str]:
        """Run the jobs. For each, why it failed, as far as the launcher knows."""
        try:
            returns = self.launcher.launch(batch, initial_job_idx=0)
        except Exception as error:  # a launcher's own, as for a job that its cluster killed
            traceback.print_exc()
            return [f"no result; the launcher stopped with {_line(error)}"] * len(batch)
        return [
            _reason(job) or "ended without an error, but its run is not done" for job in returns
        ]


class JobFailed(Exception):
    """Why a job failed, in one line."""


class Contained:
    """A task whose every end is a result: leaving the process would end the whole sweep."""

    def __init__(self, task: TaskFunction):
        self.task = task

    def __call__(self, config: DictConfig) -> Any:
        try:
            return self.task(config)
        except SystemExit as error:  # a user's mistake, told already
            from rec_experiments.cli import explain

            raise JobFailed(explain(error.__context__ or error)) from None
        except Exception:
            traceback.print_exc()
            raise


class LocalLauncher(Launcher):
    """Runs up to `jobs` jobs at once, each in a process of its own that writes log.txt."""

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
        from rec_experiments.sweeps import resolve

        config = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(config):
            config.hydra.job.id = config.hydra.job.num = number
        _, path = resolve(_without_hydra(config))
        # For the provenance of the run: the command that repeats it alone.
        sys.orig_argv = [sys.executable, "-m", "rec_experiments", *overrides]
        path.mkdir(parents=True, exist_ok=True)
        with open(path / "log.txt", "ab") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        return run_job(
            hydra_context=self.hydra_context,
            task_function=self.task,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )


def _job(connection: Connection, payload: bytes) -> None:
    """Body of a job's process: sends why the job failed, or None."""
    launcher, overrides, number, singletons = cloudpickle.loads(payload)
    Singleton.set_state(singletons)
    setup_globals()
    try:
        connection.send(_reason(launcher.run(overrides, number)))
    except Exception as error:
        connection.send(_line(error))


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


def _reason(job: JobReturn) -> str | None:
    """Why a job failed, or None. Reading its return value would raise."""
    return _line(job._return_value) if job.status is JobStatus.FAILED else None


def _line(error: BaseException) -> str:
    """The last line of an error's report."""
    if isinstance(error, JobFailed):
        return str(error)
    return traceback.format_exception_only(error)[-1].strip()


def _without_hydra(config: DictConfig) -> DictConfig:
    config = config.copy()
    with open_dict(config):
        del config["hydra"]
    return config
