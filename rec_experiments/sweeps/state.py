"""The states of jobs: from their run folders and one call of SLURM's squeue."""

import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rec_experiments.common.errors import UserError
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.sweeps.jobs import Job, finished, output_of
from rec_experiments.sweeps.submission import RECORD, Submission, newest

ACTIVE = ("queued", "running")
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT")

# In the log of a job: the line that each start writes, and the reasons for its end.
STARTED = "Starting with JobEnvironment"
ENDING = re.compile(
    r"CANCELLED AT [^*\n]*\w|.*oom.kill.*|the run (was killed|ended) .*|srun: error: .*", re.I
)

STUCK = "and has no new checkpoint since"  # the supervisor writes it for a job that it gives up

Place = tuple[Submission, int]  # the submission of a job, and its number there
Queue = dict[tuple[str, int], tuple[str, str]]  # submission and number: SLURM's state and reason


@dataclass(frozen=True, slots=True)
class State:
    """name: done, running, queued, failed, missing, interrupted (the state is saved, and no job is
    queued to resume it), outdated (done by another release, and to be repeated) or unreadable (a
    file is damaged). step: of the last row. note: the reason for the state. release: the other
    releases that made a done run."""

    name: str
    step: int
    note: str = ""
    release: str = ""


def survey(jobs: Iterable[Job]) -> dict[Path, State]:
    """The state of each job, by run folder. Calls squeue once, if unfinished jobs were submitted.

    Raises UserError if squeue fails.
    """
    jobs = list(jobs)
    records = newest(map(output_of, jobs))
    asked = any(job.path.absolute() in records and not finished(job) for job in jobs)
    queue = read_queue() if asked else {}  # before the folders are read: a job may end in between
    return {job.path: _state(job, records.get(job.path.absolute()), queue) for job in jobs}


def _state(job: Job, record: Place | None, queue: Queue) -> State:
    try:
        return _readable_state(job, record, queue)
    except UserError as error:
        return State("unreadable", 0, str(error))


def _readable_state(job: Job, record: Place | None, queue: Queue) -> State:
    """Raises UserError if a file of the run is damaged."""
    folder = RunFolder(job.path)
    status, step = folder.status(), folder.last_step()
    claim = status.get("state", "missing")
    in_queue = queue.get((record[0].name, record[1])) if record else None
    if finished(job):
        return State("done", step, release=folder.other_releases())
    if in_queue and in_queue[0] in WAITING:
        return State("queued", step, in_queue[1])
    if in_queue or folder.is_held():
        return State("running", step)
    failed, log = claim == "failed" and not _is_older(job.path, record), _log(record)
    if STUCK not in log and (claim in ("done", "interrupted") or failed):
        name = "outdated" if claim == "done" else claim
        return State(name, step, str(status.get("reason") or f"by {folder.other_releases()}"))
    ending = ENDING.search(log)
    reason = mistake_in_log(job.path) or (ending[0] if ending else "")
    if claim != "missing" or log or reason:  # a killed process leaves the status `running`
        return State("failed", step, reason or "ended without a result")
    return State("missing", step)


def read_queue() -> Queue:
    """The user's jobs in SLURM. Raises UserError if squeue is missing or fails."""
    if shutil.which("squeue") is None:
        raise UserError(
            "squeue: not found here, but jobs were submitted to SLURM; use a login node"
        )
    done = subprocess.run(
        ["squeue", "--me", "--array", "--noheader", "--format=%j|%K|%T|%r"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise UserError(f"squeue: {(done.stderr.strip() or 'failed').splitlines()[-1]}")
    rows = [line.split("|", 3) for line in done.stdout.splitlines()]
    return {  # the only job of a submission is no array and has no number
        (name, int(number) if number.isdecimal() else 0): (state, reason)
        for name, number, state, reason in rows
    }


def _is_older(path: Path, record: Place | None) -> bool:
    """Whether the run's status is older than its last submission."""
    if record is None:
        return False
    submitted = (record[0].folder / RECORD).stat().st_mtime
    return (path / "status.json").stat().st_mtime < submitted


def _log(record: Place | None) -> str:
    """What SLURM and the supervisor wrote since the job's last start; "" before the first."""
    if record is None:
        return ""
    submission, number = record
    name = f"*_{number}_0_log.out" if len(submission.jobs) > 1 else "*_0_log.out"
    return "".join(map(_text, submission.folder.glob(name))).rpartition(STARTED)[2]


def mistake_in_log(path: Path) -> str:
    """The error in the last line of a job's log, or ""."""
    last = _text(path / "log.txt").rstrip().rpartition("\n")[2]
    return last.removeprefix("error: ") if last.startswith("error: ") else ""


def _text(file: Path) -> str:
    """The text of a log; "" if it cannot be read."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
