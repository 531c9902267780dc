"""A job under SLURM: the run is a child process of submitit's, which requeues it at a notice.

SLURM signals every process of a job, and SIGUSR2 ends one that does not expect it. So all ignore
it but submitit's process, once that is ready.
"""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

from submitit.helpers import DelayedSubmission

MARGIN = 15.0  # seconds that requeueing needs before the end of the notice
MAX_IN_VAIN = 5  # times that a job is requeued without a new checkpoint
GIVES_UP = (
    f"and has no new checkpoint since it was last requeued {MAX_IN_VAIN} times, so it is not "
    "requeued again: it needs more time, or a smaller checkpoint_every"
)
IGNORE_USR2 = ("sh", "-c", 'trap "" USR2; exec "$@"', "sh")  # prefix of a command


@dataclass
class Supervisor:
    """The function that submitit calls, and checkpoints at SIGUSR2.

    notice: seconds before the time limit or preemption at which SLURM sends SIGUSR2. saved: the
    newest checkpoint at each time that the job was requeued.
    """

    notice: float
    saved: tuple[str, ...] = ()
    run: subprocess.Popen[bytes] | None = field(default=None, compare=False)

    def __call__(self, command: list[str], log: str) -> None:
        """Run `command` with its output in `log`. Exits with the run's code if it failed.

        After a SIGTERM from SLURM itself (scancel, or preemption without a notice) SLURM decides
        what comes next.
        """
        terminated: list[int] = []

        def receive(number: int, frame: FrameType | None) -> None:
            terminated.append(number)

        signal.signal(signal.SIGTERM, receive)
        Path(log).parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            self.run = subprocess.Popen([*IGNORE_USR2, *command], stdout=file, stderr=file)
        # Without Popen's lock, which `checkpoint` needs while this waits.
        os.waitid(os.P_PID, self.run.pid, os.WEXITED | os.WNOWAIT)
        if code := self.run.wait():
            print(_ended(code), flush=True)
            while terminated:  # until SLURM ends the job: by itself it would count as failed
                time.sleep(1)
            sys.exit(code if code > 0 else 128 - code)

    def checkpoint(self, command: list[str], log: str) -> DelayedSubmission | None:
        """Stop the run, which saves its state at SIGTERM, or is killed shortly before the notice
        ends. Returns the job to requeue, which resumes from the last checkpoint; None if it has had
        no new one for MAX_IN_VAIN times."""
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        ended = self._stop()
        states = Path(log).parent.glob("checkpoints/step_*")
        newest = max((state.name for state in states), default="none")
        if self.saved[-MAX_IN_VAIN:] == (newest,) * MAX_IN_VAIN:
            print(f"{ended}, {GIVES_UP}", flush=True)
            return None
        print(ended, flush=True)
        return DelayedSubmission(replace(self, saved=(*self.saved, newest), run=None), command, log)

    def _stop(self) -> str:
        """End the run, and return how it ended."""
        if self.run is None:
            return "the run had not begun"
        self.run.terminate()
        try:
            return _ended(self.run.wait(max(self.notice - MARGIN, self.notice / 2)))
        except subprocess.TimeoutExpired:
            self.run.kill()
            return _ended(self.run.wait())


def _ended(code: int) -> str:
    if code < 0:
        return f"the run was killed by {signal.Signals(-code).name}"
    return f"the run ended with exit code {code}"
