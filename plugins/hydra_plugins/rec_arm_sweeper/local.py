"""A launcher that runs jobs as processes of this machine."""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from statistics import fmean
from typing import TYPE_CHECKING, Any

import cloudpickle  # type: ignore[import-untyped]
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from hydra_plugins.rec_arm_sweeper._job import failure, last_line
from omegaconf import DictConfig

from rec_experiments.errors import ELSEWHERE, GOES_ON, UserError, printable

if TYPE_CHECKING:
    from rec_experiments.sweeps import Job

# Imported once, by the process from which the jobs are forked.
PRELOAD = [
    "rec_experiments.sweeps.compositions",
    "rec_experiments.cli.train",
    "rec_experiments.runs.run",
    "rec_experiments.samplers.decoding",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
]


class LocalLauncher(Launcher):
    """Runs up to `jobs` jobs at once, each in a forked process that writes log.txt.

    Forked processes have torch and transformers imported. With submitit's LocalExecutor each job
    imports them again, which takes 9 s of processor time: a sweep of six miniature runs of three
    steps, two at a time, took 76 s forked and 255 s with submitit, on the same busy machine.

    A job that starts after the code or its configuration was changed fails in one line.

    The jobs share what they draw from the initial weights, in a folder that is removed at the end.
    """

    def __init__(self, jobs: int):
        self.jobs = jobs

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        if not isinstance(self.jobs, int) or self.jobs < 1:
            raise HydraException(f"hydra.launcher.jobs={self.jobs}: must be an integer, at least 1")
        self.task = task_function

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        raise HydraException("hydra/launcher=local: needs hydra/sweeper=arms")

    def run(self, jobs: list["Job"]) -> list[str | None]:
        """Run all jobs. Returns for each why it failed, or None.

        If an exception or a signal ends it early, the running jobs save their states and stop
        before it returns.
        """
        from rec_experiments.config.labels import run_labels, without_shared
        from rec_experiments.runs import display  # not later: the checkout may change in a sweep
        from rec_experiments.runs.signals import on_stop
        from rec_experiments.sweeps.compositions import digest

        code = digest()
        labels = run_labels([(job.config, job.overrides) for job in jobs])
        names, shared = without_shared(labels)
        if shared:
            print(f"all: {shared}", flush=True)
        times: list[float] = []  # of finished runs, in seconds
        waiting = deque(enumerate(jobs))
        running: dict[Any, tuple[int, BaseProcess, float]] = {}
        reasons: dict[int, str | None] = {}
        folder = tempfile.TemporaryDirectory(prefix="rec_draws_", ignore_cleanup_errors=True)
        with on_stop(_exit), folder as draws:
            try:
                while waiting or running:
                    while waiting and len(running) < self.jobs:
                        index, job = waiting.popleft()
                        connection, process = _start(self.task, job, draws, code)
                        running[connection] = (index, process, time.monotonic())
                    for connection in wait(list(running)):
                        index, process, started = running.pop(connection)
                        reasons[index] = reason = _result(connection, process)
                        if reason is None:
                            times.append(time.monotonic() - started)
                        left = len(jobs) - len(reasons)
                        seconds = (
                            fmean(times) * left / min(self.jobs, left) if times and left else 0
                        )
                        head = f"[{len(reasons)}/{len(jobs)}] "
                        ended = _ended(jobs[index], reason)
                        if seconds:
                            ended += f", {display.duration(seconds)} left"
                        print(_line(head, names[index], ended), flush=True)
            finally:
                for _, process, _ in running.values():
                    process.terminate()
                for _, process, _ in running.values():
                    process.join()
        return [reasons[index] for index in range(len(jobs))]


def _ended(job: "Job", reason: str | None) -> str:
    """How a job ended: its last accuracy, or that it failed."""
    from rec_experiments.runs.run_folder import RunFolder

    if reason:
        return "runs in another process" if reason.endswith(ELSEWHERE) else "failed"
    try:
        rows = RunFolder(job.path).metrics()
    except UserError:  # somebody changed the folder
        rows = []
    evaluated = [row["eval/accuracy"] for row in rows if "eval/accuracy" in row]
    return f"accuracy {evaluated[-1]:.3f}" if evaluated else "done"


def _line(head: str, name: str, ended: str) -> str:
    """One line, as wide as a terminal at most."""
    from rec_experiments.runs.display import shortened

    room = shutil.get_terminal_size().columns - len(f"{head}: {ended}")
    name = printable(name)
    shown = shortened(name, max(room, 12)) if sys.stdout.isatty() else name
    return f"{head}{shown}: {ended}"


def _exit(number: int) -> None:
    """Leave the process as Ctrl-C does."""
    print(GOES_ON, file=sys.stderr)
    sys.exit(128 + number)


def _start(
    task: Callable[[Any], Any], job: "Job", draws: str, code: str
) -> tuple[Connection, BaseProcess]:
    """Start a job in a forked process, which sends why it failed, or None."""
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_body, args=(sender, cloudpickle.dumps((task, job, draws, code)))
    )
    process.start()
    sender.close()
    return receiver, process


def _body(sender: Connection, payload: bytes) -> None:
    """The body of a job's process."""
    from rec_experiments.samplers import shared
    from rec_experiments.sweeps.compositions import digest

    task, job, os.environ[shared.FOLDER], code = cloudpickle.loads(payload)
    try:
        job.path.mkdir(parents=True, exist_ok=True)
        with open(job.path / "log.txt", "ab") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        if digest() == code:
            reason = failure(task, job)
        else:
            reason = "the code has changed since the sweep began; the same command continues it"
            print(f"error: {reason}", flush=True)
    except OSError as error:
        reason = f"{error.filename}: cannot be written ({error.strerror})"
    except Exception as error:
        traceback.print_exc()
        reason = last_line(error)
    with contextlib.suppress(BrokenPipeError):  # the sweep has ended
        sender.send(reason)


def _result(receiver: Any, process: BaseProcess) -> str | None:
    """Wait for the end of a job. Returns why it failed, or None."""
    try:
        reason = receiver.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        reason = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    process.join()
    receiver.close()
    return reason
