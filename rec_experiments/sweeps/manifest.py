"""The manifest of a sweep: which run folder holds which job.

OUTPUT_DIR/manifests/NAME.csv has a line for each job, written when the sweep is launched. NAME is
that of the sweep, or multirun-DIGEST for values that the command line lists.
"""

import csv
import hashlib
import io
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from rec_experiments.config.identity import NOT_IDENTITY
from rec_experiments.config.labels import methods, without_shared
from rec_experiments.errors import UserError
from rec_experiments.files import write_atomic
from rec_experiments.sweeps.jobs import Job
from rec_experiments.tracking.trackers import schedule_name

FOLDER = "manifests"


@dataclass(frozen=True, slots=True)
class Line:
    """One job. figure: the manifest's name. column: the heading of the job's column. run: its run
    folder within output_dir. overrides: the job's command line, quoted for a shell."""

    figure: str
    arm: str
    column: str
    seed: int
    run: str
    overrides: str

    @property
    def key(self) -> tuple[str, frozenset[str]]:
        return self.arm, job_key(shlex.split(self.overrides))


COLUMNS = [field.name for field in fields(Line)]


def job_key(overrides: Iterable[str]) -> frozenset[str]:
    """What identifies a job among those of a sweep: its overrides without those that do not change
    its results, such as output_dir."""
    return frozenset(
        line
        for line in overrides
        if line.startswith("algo=")
        or line.lstrip("+").partition("=")[0].partition(".")[0] not in NOT_IDENTITY
    )


def multirun_name(overrides: Iterable[str]) -> str:
    """The name of the manifest of a multirun that is no figure's."""
    digest = hashlib.sha256(shlex.join(sorted(overrides)).encode()).hexdigest()
    return f"multirun-{digest[:8]}"


def write_manifests(name: str, jobs: Sequence[Job]) -> list[Path]:
    """Write the jobs into the manifests of their output folders, and return these files.

    A job without an arm or a column has its method or its schedule there. A new line replaces that
    of the same job, and that of the same run in the same arm; the others stay. Raises UserError if
    an old manifest is damaged.
    """
    arms, _ = without_shared(methods([(job.config, job.overrides) for job in jobs]))
    new: dict[Path, list[Line]] = defaultdict(list)
    for job, method in zip(jobs, arms, strict=True):
        output = Path(job.config["output_dir"]).expanduser()
        inside = job.path.is_relative_to(output)
        new[output / FOLDER / f"{name}.csv"].append(
            Line(
                figure=name,
                arm=job.label or method,
                column=job.heading or schedule_name(job.config["sync"]),
                seed=job.config["seed"],
                run=str(job.path.relative_to(output) if inside else job.path.absolute()),
                overrides=shlex.join(job.overrides),
            )
        )
    for file, lines in new.items():
        keys = {line.key for line in lines} | {(line.arm, line.run) for line in lines}
        kept = [
            each
            for each in read_manifest(file)
            if keys.isdisjoint([each.key, (each.arm, each.run)])
        ]
        file.parent.mkdir(parents=True, exist_ok=True)
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([COLUMNS, *map(astuple, [*kept, *lines])])
        write_atomic(file, text.getvalue().encode())
    return list(new)


def read_manifest(file: Path) -> list[Line]:
    """The lines of a manifest; [] if there is none. Raises UserError if it is damaged."""
    try:
        header, *rows = csv.reader(file.read_text(encoding="utf-8").splitlines())
        if header != COLUMNS:
            raise ValueError(f"its columns are not {','.join(COLUMNS)}")
        return [
            Line(figure, arm, column, int(seed), run, overrides)
            for figure, arm, column, seed, run, overrides in rows
        ]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(
            f"{file}: cannot be read ({error}); remove it, and start the sweep again: finished "
            "runs are kept"
        ) from None
