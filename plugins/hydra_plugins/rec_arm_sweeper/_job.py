"""Running one job: in this process, or under SLURM as a child process that can be preempted.

Imports nothing slow: SLURM signals every process of a job, and SIGUSR2 would kill a process that is
still importing. So only the supervisor handles SIGUSR2.
"""

import math
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rec_experiments.sweeps import Job

PREEMPTED = signal.SIGUSR2  # submitit asks SLURM to send it before a time limit or preemption
POLL = 0.5  # seconds
MARGIN = 15.0  # seconds that requeueing needs before the end of the notice
MAX_IN_VAIN = 5  # times that a job is requeued without a new checkpoint
GIVES_UP = (
    f"and has no new checkpoint since it was last requeued {MAX_IN_VAIN} times, so it is not "
    "requeued again: it needs more time, or a smaller checkpoint_every"
)
IGNORE_USR2 = ("sh", "-c", 'trap "" USR2; exec "$@"', "sh")  # prefix of a command


def failure(task: Callable[[Any], Any], job: "Job") -> str | None:
    """Run a job in this process. Returns why it failed, in one line, or None."""
    from rec_experiments.config import schema
    from rec_experiments.config.composition import explain
    from rec_experiments.errors import INTERRUPTED

    # Provenance records the command that repeats this run alone.
    sys.orig_argv = [sys.executable, "-m", "rec_experiments", *job.overrides]
    try:
        task(schema.restore(job.config, job.overrides))
    except SystemExit as error:  # a user's mistake, already reported
        if error.code in INTERRUPTED:
            raise
        return explain(error.__context__ or error)
    except Exception as error:
        traceback.print_exc()
        print(f"error: {last_line(error)}", file=sys.stderr)  # the last line of the log
        return last_line(error)
    return None


def last_line(error: BaseException) -> str:
    """The last line of an error's traceback."""
    return traceback.format_exception_only(error)[-1].strip()


def supervise(command: list[str], log: str, notice: float, record: str) -> None:
    """Run `command` with its output in `log`, and requeue the job if it is preempted.

    On SIGUSR2 the run gets SIGTERM. Once it has saved its state, or is killed shortly before the
    `notice` (seconds) ends, the job is requeued and resumes from its last checkpoint. After
    MAX_IN_VAIN requeues without a new checkpoint, counted in the file `record`, it is not. After a
    SIGTERM from SLURM itself (scancel, or preemption without SIGUSR2) SLURM decides what comes
    next. Exits with the run's code if it failed.
    """
    received: set[int] = set()

    def receive(number: int, frame: FrameType | None) -> None:
        received.add(number)

    for number in (PREEMPTED, signal.SIGTERM):
        signal.signal(number, receive)
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as file:
        run = subprocess.Popen([*IGNORE_USR2, *command], stdout=file, stderr=file)
    deadline = math.inf
    while run.poll() is None:
        if PREEMPTED in received and deadline == math.inf:
            run.terminate()
            deadline = time.monotonic() + max(notice - MARGIN, notice / 2)
        if time.monotonic() >= deadline:
            run.kill()
        time.sleep(POLL)
    code = run.returncode
    if not code:
        return
    killer = signal.Signals(-code).name if code < 0 else ""
    ended = f"the run {f'was killed by {killer}' if killer else f'ended with exit code {code}'}"
    requeue = PREEMPTED in received and _makes_progress(Path(log).parent, Path(record))
    print(ended if requeue or PREEMPTED not in received else f"{ended}, {GIVES_UP}")
    if requeue:
        subprocess.run(["scontrol", "requeue", _job_id()], check=False)
    elif signal.SIGTERM in received and PREEMPTED not in received:
        while True:  # until SLURM ends the job: if it exited by itself, it would count as failed
            signal.pause()
    sys.exit(code if code > 0 else 128 - code)


def _makes_progress(run: Path, record: Path) -> bool:
    """Whether the newest checkpoint differs from those in the last MAX_IN_VAIN lines of `record`.
    Appends it to `record`."""
    newest = max((state.name for state in run.glob("checkpoints/step_*")), default="none")
    before = record.read_text().splitlines() if record.exists() else []
    record.write_text("\n".join([*before, newest]))
    return before[-MAX_IN_VAIN:] != [newest] * MAX_IN_VAIN


def _job_id() -> str:
    """The job's id. In an array, SLURM_JOB_ID of one job may also name the whole array."""
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return "{SLURM_ARRAY_JOB_ID}_{SLURM_ARRAY_TASK_ID}".format_map(os.environ)
    return os.environ["SLURM_JOB_ID"]
