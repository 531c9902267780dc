"""What a job of SLURM runs: it starts the run as a process of its own and passes preemption on.

Nothing heavy is imported here. SLURM sends its signals to every process of the job, and one that
comes while a run still imports would kill it; so this process alone listens for SIGUSR2.
"""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import BinaryIO

PREEMPTED = signal.SIGUSR2  # what submitit asks SLURM to send before a time limit or preemption
POLL = 0.5  # seconds
MARGIN = 15.0  # seconds before the end of the notice, for the scheduler to hear of it
IN_VAIN = 5  # times that a job goes back without a new state: it may be preempted as it starts
STUCK = (
    f"and has no new checkpoint since it went back into the queue {IN_VAIN} times, so it does not "
    "again: it needs more time, or a smaller checkpoint_every"
)
DEAF = ("sh", "-c", 'trap "" USR2; exec "$@"', "sh")  # starts a command that SIGUSR2 cannot kill


def supervise(command: list[str], log: str, notice: float, record: str) -> None:
    """Run `command` with its output in `log`, and see to it that a stopped run goes on later.

    On SIGUSR2 the run is told to stop (SIGTERM) and, once it has saved its state, the job goes back
    into the queue. One that has not ended shortly before the `notice`, seconds, is over is killed,
    and goes back as well: it goes on from its last state. One without a new state since it went
    back IN_VAIN times does not: it would come back for ever. `record` is the file that says so.
    After a SIGTERM from SLURM itself (scancel, or a preemption without SIGUSR2) SLURM decides what
    comes next. Exits with the run's code if it failed.
    """
    received: set[int] = set()

    def receive(number: int, frame: FrameType | None) -> None:
        received.add(number)

    for number in (PREEMPTED, signal.SIGTERM):
        signal.signal(number, receive)
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with open_log(Path(log)) as file:
        run = subprocess.Popen([*DEAF, *command], stdout=file, stderr=file)
    end = math.inf  # of its patience
    while run.poll() is None:
        if PREEMPTED in received and end == math.inf:
            run.terminate()
            end = time.monotonic() + max(notice - MARGIN, notice / 2)
        if time.monotonic() >= end:
            run.kill()
        time.sleep(POLL)
    code = run.returncode
    if not code:
        return
    killer = signal.Signals(-code).name if code < 0 else ""
    ended = f"the run {f'was killed by {killer}' if killer else f'ended with exit code {code}'}"
    goes_back = PREEMPTED in received and _has_moved_on(Path(log).parent, Path(record))
    print(ended if goes_back or PREEMPTED not in received else f"{ended}, {STUCK}")
    if goes_back:
        subprocess.run(["scontrol", "requeue", _job_id()], check=False)
    elif signal.SIGTERM in received and PREEMPTED not in received:
        while True:  # until SLURM ends the job: were it to end by itself, it would count as failed
            signal.pause()
    sys.exit(code if code > 0 else 128 - code)


def open_log(file: Path) -> BinaryIO:
    """A log to be written on. Raises OSError for a link, which would let another file grow, and for
    a pipe, which would wait for its reader."""
    strict = os.O_NOFOLLOW | os.O_NONBLOCK
    return open(file, "ab", opener=lambda name, flags: os.open(name, flags | strict, 0o666))


def _has_moved_on(run: Path, record: Path) -> bool:
    """Whether the run has another newest state than the last IN_VAIN lines of `record` say, which
    gets one more."""
    newest = max((state.name for state in run.glob("checkpoints/step_*")), default="none")
    before = record.read_text().splitlines() if record.exists() else []
    record.write_text("\n".join([*before, newest]))
    return before[-IN_VAIN:] != [newest] * IN_VAIN


def _job_id() -> str:
    """Never SLURM_JOB_ID in an array: for one of its jobs that is also the name of them all."""
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return "{SLURM_ARRAY_JOB_ID}_{SLURM_ARRAY_TASK_ID}".format_map(os.environ)
    return os.environ["SLURM_JOB_ID"]
