"""The jobs of a sweep as processes of this machine."""

import os
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from statistics import fmean
from typing import Any

from rec_experiments.common.errors import (
    ELSEWHERE,
    GOES_ON,
    STOPPING,
    UserError,
    printable,
)
from rec_experiments.config import schema
from rec_experiments.config.labels import run_labels, without_shared
from rec_experiments.runs import display, provenance
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.runs.signals import on_stop
from rec_experiments.sweeps.jobs import Job
from rec_experiments.sweeps.state import mistake_in_log

Task = Callable[[Any], Any]  # runs a composed configuration

# What jobs need, imported once.
PRELOAD = (
    "rec_experiments.runs.run",
    "rec_experiments.samplers.shared",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "torch.profiler._cupti_monitor",
    "torch.utils.serialization.config",
)


@dataclass
class LocalLauncher:
    """Runs up to `jobs` jobs at once, each in a process that writes log.txt.

    Jobs are forked from this process, which has imported what they need: an import takes 9 s of
    processor time, and an install or an edit while the sweep runs does not reach them. Only the
    processes that a job starts itself (pipeline=overlap, verifiers) import what is there by then.

    The jobs share what they draw from the initial weights, in a folder that is removed at the end.
    """

    jobs: int

    def __post_init__(self) -> None:
        if not isinstance(self.jobs, int) or self.jobs < 1:
            raise UserError(f"hydra.launcher.jobs={self.jobs}: must be an integer, at least 1")

    def run(self, task: Task, jobs: list[Job]) -> list[str | None]:
        """Run all jobs. Returns for each why it failed, or None.

        If an exception or a signal ends it early, the running jobs save their states and stop
        before it returns.
        """
        names, shared = without_shared(run_labels([(job.config, job.overrides) for job in jobs]))
        if shared:
            print(f"all: {shared}", flush=True)
        for module in PRELOAD:
            import_module(module)
        provenance.source()  # of the code that is loaded now
        times: list[float] = []  # of finished runs, in seconds
        waiting = deque(enumerate(jobs))
        running: dict[Any, tuple[int, ForkProcess, float]] = {}  # by sentinel
        reasons: dict[int, str | None] = {}
        folder = tempfile.TemporaryDirectory(prefix="rec_draws_", ignore_cleanup_errors=True)
        with on_stop(_exit), folder as draws:
            try:
                while waiting or running:
                    while waiting and len(running) < self.jobs:
                        index, job = waiting.popleft()
                        process = get_context("fork").Process(target=_body, args=(task, job, draws))
                        process.start()
                        running[process.sentinel] = (index, process, time.monotonic())
                    for sentinel in wait([*running]):
                        index, process, started = running.pop(sentinel)
                        process.join()
                        reasons[index] = reason = _reason(process.exitcode or 0, jobs[index])
                        if reason is None:
                            times.append(time.monotonic() - started)
                        left = len(jobs) - len(reasons)
                        ended = _ended(jobs[index], reason)
                        if times and left:
                            seconds = fmean(times) * left / min(self.jobs, left)
                            ended += f", {display.duration(seconds)} left"
                        count = f"[{len(reasons)}/{len(jobs)}]"
                        print(count, f"{printable(names[index])}: {ended}", flush=True)
            finally:
                for _, process, _ in running.values():
                    process.terminate()
                for _, process, _ in running.values():
                    process.join()
        return [reasons[index] for index in range(len(jobs))]


def _reason(code: int, job: Job) -> str | None:
    """Why a job with this exit code failed, or None."""
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return (mistake_in_log(job.path) or f"exit code {code}") if code else None


def _ended(job: Job, reason: str | None) -> str:
    """How a job ended: its last accuracy, or that it failed."""
    if reason:
        return "runs in another process" if reason.endswith(ELSEWHERE) else "failed"
    try:
        rows = RunFolder(job.path).metrics()
    except UserError:  # somebody changed the folder
        rows = []
    evaluated = [row["eval/accuracy"] for row in rows if "eval/accuracy" in row]
    return f"accuracy {evaluated[-1]:.3f}" if evaluated else "done"


def _exit(number: int) -> None:
    """Leave the process as Ctrl-C does."""
    print(GOES_ON, file=sys.stderr)
    sys.exit(128 + number)


def _body(task: Task, job: Job, draws: str) -> None:
    """The body of a job's process. The last line of its log says why it failed."""
    from rec_experiments.samplers import shared

    for number in STOPPING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    os.environ[shared.FOLDER] = draws
    job.path.mkdir(parents=True, exist_ok=True)
    with open(job.path / "log.txt", "ab") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    # Provenance records the command that repeats this run alone.
    sys.orig_argv = [sys.executable, "-m", "rec_experiments", *job.overrides]
    try:
        task(schema.restore(job.config, job.overrides))
    except Exception as error:
        traceback.print_exc()
        print(f"error: {traceback.format_exception_only(error)[-1].strip()}", file=sys.stderr)
        sys.exit(1)
