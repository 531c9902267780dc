"""Submissions to a scheduler: a record of the jobs, and a copy of the code that they run.

OUTPUT_DIR/submissions/NAME/    jobs.json, the record; SLURM's script and logs
OUTPUT_DIR/submissions/code/    copies of the code, named by the digest of their content

A job runs the code and the configuration that were submitted, even if they are edited while it
waits. In the queue a job is identified by the submission's name and its own number.
"""

import dataclasses
import hashlib
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rec_experiments.common.errors import UserError, first_line
from rec_experiments.common.files import PRIVATE, write_atomic
from rec_experiments.config import plugins, schema
from rec_experiments.runs import checkout, provenance
from rec_experiments.sweeps.jobs import Job, output_of

FOLDER, RECORD, CODE = "submissions", "jobs.json", "code"


@dataclass(frozen=True, kw_only=True, slots=True)
class Submission:
    """Jobs that were submitted together; a job's number is its index in `jobs`.

    folder: of the record. command: submitted them. code: the copy that they run.
    """

    folder: Path
    command: list[str]
    code: Path
    jobs: list[Job]

    @property
    def name(self) -> str:
        return self.folder.name


def prepare(title: str, jobs: list[Job]) -> Submission:
    """Write the record and copy the code. Submits nothing."""
    root = output_of(jobs[0]).absolute() / FOLDER
    stamp = f"{title}-{time.strftime('%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    submission = Submission(
        folder=root / stamp,
        command=sys.orig_argv,
        code=copy_code(root / CODE),
        jobs=[dataclasses.replace(job, path=job.path.absolute()) for job in jobs],
    )
    submission.folder.mkdir(parents=True)
    record = dataclasses.asdict(submission)
    del record["folder"]
    write_atomic(submission.folder / RECORD, json.dumps(record, default=str).encode())
    return submission


def read(folder: Path) -> Submission:
    """The submission recorded in `folder`. Raises UserError if the record cannot be read."""
    try:
        record: dict[str, Any] = json.loads((folder / RECORD).read_bytes())
        return Submission(
            folder=folder,
            command=record["command"],
            code=Path(record["code"]),
            jobs=[Job(**{**job, "path": Path(job["path"])}) for job in record["jobs"]],
        )
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


def copy_code(root: Path) -> Path:
    """Copy this package, its configuration and the packages that extend it.

    Returns the copy, a folder for PYTHONPATH that only its owner can read. Its name is a digest of
    the content, so equal code is stored once. Files that git ignores are left out.
    """
    root.mkdir(parents=True, exist_ok=True)
    copy = root / f".partial-{os.getpid()}"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(mode=0o700)
    ours, ignored = copy / "rec_experiments", checkout.ignored()

    def left_out(folder: str, names: list[str]) -> set[str]:
        """The names in a folder that are not copied."""
        return {
            name
            for name in names
            if name == "__pycache__" or Path(folder, name).resolve() in ignored
        }

    shutil.copytree(schema.PACKAGE, ours, ignore=left_out)
    shutil.copytree(schema.CONF, ours / "conf", ignore=left_out, dirs_exist_ok=True)
    plugins.copy(copy, left_out)
    write_atomic(copy / provenance.SOURCE, json.dumps(provenance.source()).encode(), PRIVATE)
    digest = hashlib.sha256()
    for file in sorted(file for file in copy.rglob("*") if file.is_file()):
        digest.update(f"{file.relative_to(copy)} {file.stat().st_size}\n".encode())
        digest.update(file.read_bytes())
    target = root / digest.hexdigest()[:16]
    try:
        copy.rename(target)
    except OSError:  # another submission has copied this code
        shutil.rmtree(copy)
    return target
