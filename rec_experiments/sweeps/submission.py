"""Submissions to a scheduler: a record of the jobs, and a copy of the code that they run.

OUTPUT_DIR/submissions/NAME/    jobs.json, the record; code, the copy; SLURM's script and logs

A job runs the code and the configuration that were submitted, even if they are edited while it
waits. In the queue a job is identified by the submission's name and its own number.
"""

import dataclasses
import json
import secrets
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rec_experiments.common.errors import UserError, first_line
from rec_experiments.common.files import PRIVATE, write_atomic
from rec_experiments.config import plugins
from rec_experiments.runs import provenance
from rec_experiments.sweeps.jobs import Job, output_of

FOLDER, RECORD = "submissions", "jobs.json"


@dataclass(frozen=True, slots=True)
class Submission:
    """Jobs that were submitted together; a job's number is its index in `jobs`."""

    folder: Path
    jobs: list[Job]

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def code(self) -> Path:
        """The copy that the jobs run, a folder for PYTHONPATH."""
        return self.folder / "code"


def prepare(title: str, jobs: list[Job]) -> Submission:
    """Write the record and copy the code. Submits nothing."""
    stamp = f"{title}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    submission = Submission(
        folder=output_of(jobs[0]).absolute() / FOLDER / stamp,
        jobs=[dataclasses.replace(job, path=job.path.absolute()) for job in jobs],
    )
    copy_code(submission.code)
    record = {"jobs": [*map(dataclasses.asdict, submission.jobs)]}
    write_atomic(submission.folder / RECORD, json.dumps(record, default=str).encode())
    return submission


def read(folder: Path) -> Submission:
    """The submission recorded in `folder`. Raises UserError if the record cannot be read."""
    try:
        jobs = json.loads((folder / RECORD).read_bytes())["jobs"]
        return Submission(folder, [Job(**{**job, "path": Path(job["path"])}) for job in jobs])
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(
            f"submission {folder}: {RECORD} cannot be read ({first_line(error)}); remove the "
            "folder if none of its jobs is queued"
        ) from None


def newest(outputs: Iterable[Path]) -> dict[Path, tuple[Submission, int]]:
    """The last submission of each run folder, and the job's number there. Looks in these output
    folders. Raises UserError for a record that cannot be read."""
    records = [record for output in set(outputs) for record in output.glob(f"{FOLDER}/*/{RECORD}")]
    records.sort(key=lambda file: file.stat().st_mtime)
    submissions = [read(record.parent.absolute()) for record in records]
    return {
        job.path: (submission, number)
        for submission in submissions
        for number, job in enumerate(submission.jobs)
    }


def copy_code(target: Path) -> None:
    """Copy this package, its configuration and the packages that extend it into a new folder that
    only its owner can read. Files that git ignores are left out."""
    target.mkdir(mode=0o700, parents=True)
    ours, ignored = target / plugins.OURS, provenance.ignored()

    def left_out(folder: str, names: list[str]) -> set[str]:
        """The names in a folder that are not copied."""
        return {
            name
            for name in names
            if name == "__pycache__" or Path(folder, name).resolve() in ignored
        }

    shutil.copytree(plugins.PACKAGE, ours, ignore=left_out)
    shutil.copytree(plugins.CONF, ours / "conf", ignore=left_out, dirs_exist_ok=True)
    plugins.copy(target, left_out)
    write_atomic(target / provenance.SOURCE, json.dumps(provenance.source()).encode(), PRIVATE)
