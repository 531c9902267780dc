"""What has become of jobs: from their run folders, and one look into the scheduler's queue."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rec_experiments.run_folder import RunFolder
from rec_experiments.sweeps.jobs import Job
from rec_experiments.sweeps.submission import RECORD, Submission, newest
from rec_experiments.types import UserError

ACTIVE = ("queued", "running")  # states of a job that will end by itself
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")

# In the log of a job: its start, for it may have been requeued, and why it was not to end well.
STARTED = "Starting with JobEnvironment"
ENDING = re.compile(r"CANCELLED AT [^*\n]*\w|.*oom.kill.*|the run (was killed|ended) .*", re.I)

Queue = dict[tuple[str, int], tuple[str, str]]  # submission, number: SLURM's state and its reason


@dataclass(frozen=True, slots=True)
class State:
    """name: done, running, queued, failed, interrupted (the run has saved its state and no job is
    there to go on), or missing. step: of the last row. note: why a job failed or waits.
    ends: when a running one is expected to."""

    name: str
    step: int
    note: str = ""
    ends: datetime | None = None


def survey(jobs: Iterable[Job]) -> dict[Path, State]:
    """The state of each job, by run folder. One call of the scheduler, or none if it has no part.

    Raises UserError if the scheduler does not answer.
    """
    jobs = list(jobs)
    statuses = {job.path: RunFolder(job.path).status() for job in jobs}
    records = newest(jobs)
    asked = any(
        job.path.absolute() in records and statuses[job.path].get("state") != "done" for job in jobs
    )
    queue = read_queue() if asked else {}
    return {
        job.path: _state(job, statuses[job.path], records.get(job.path.absolute()), queue)
        for job in jobs
    }


def _state(
    job: Job, status: dict[str, Any], record: tuple[Submission, int] | None, queue: Queue
) -> State:
    folder = RunFolder(job.path)
    step = folder.last_step()
    claim = status.get("state", "missing")
    outdated = record is not None and _is_older(job.path, record[0])
    in_queue = queue.get((record[0].name, record[1])) if record else None
    if claim == "done":
        return State("done", step)
    if in_queue and in_queue[0] in WAITING:
        return State("queued", step, in_queue[1])
    if in_queue or folder.is_held():
        return State("running", step, ends=_ends(job, status, step))
    if claim == "interrupted" or (claim == "failed" and not outdated):
        return State(claim, step, status["reason"])
    if claim == "running" or record:  # a dead process cannot take back that it is running
        return State("failed", step, _last_words(job.path, record))
    return State("missing", step)


def read_queue() -> Queue:
    """The user's jobs in SLURM. Raises UserError if it cannot be asked."""
    if shutil.which("squeue") is None:
        raise UserError(
            "squeue: not found here, and jobs were submitted to SLURM; ask on a login node"
        )
    asked = subprocess.run(
        ["squeue", "--me", "--array", "--noheader", "--format=%j|%K|%T|%r"],
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode:
        raise UserError(f"squeue: {(asked.stderr.strip() or 'failed').splitlines()[-1]}")
    rows = [line.split("|", 3) for line in asked.stdout.splitlines()]
    return {  # a job alone is no array and has no number
        (name, int(number) if number.isdecimal() else 0): (state, reason)
        for name, number, state, reason in rows
    }


def _ends(job: Job, status: dict[str, Any], step: int) -> datetime | None:
    """By the speed since the run was last started."""
    steps = step - status.get("from_step", step)
    if steps <= 0:
        return None
    last = datetime.fromtimestamp((job.path / "metrics.jsonl").stat().st_mtime).astimezone()
    took = (last - datetime.fromisoformat(status["since"])).total_seconds()
    return last + timedelta(seconds=took / steps * (job.config["steps"] - step))


def _is_older(path: Path, submission: Submission) -> bool:
    """Whether the run's status, if it has one, is from before it was submitted."""
    status = path / "status.json"
    submitted = (submission.folder / RECORD).stat().st_mtime
    return status.exists() and status.stat().st_mtime < submitted


def _last_words(path: Path, record: tuple[Submission, int] | None) -> str:
    """Why a job ended that could not say so itself, by what it or SLURM wrote last."""
    log = path / "log.txt"
    last = log.read_text(errors="replace").rstrip().rpartition("\n")[2] if log.exists() else ""
    if last.startswith("error: "):  # a user's mistake
        return last.removeprefix("error: ")
    endings = []
    if record:
        submission, number = record
        name = f"*_{number}_0_log.out" if len(submission.jobs) > 1 else "*_0_log.out"
        for file in submission.folder.glob(name):
            last_life = file.read_text(errors="replace").rpartition(STARTED)[2]
            endings = [match[0] for match in ENDING.finditer(last_life)]
    return endings[0] if endings else "ended without a result"
