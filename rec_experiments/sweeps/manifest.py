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
from typing import Any

import yaml

from rec_experiments.common.errors import UserError
from rec_experiments.common.files import write_atomic
from rec_experiments.config import schema
from rec_experiments.config.identity import NOT_IDENTITY
from rec_experiments.config.labels import methods, schedule_name, without_shared
from rec_experiments.runs.run_folder import read_config
from rec_experiments.sweeps.figures import load_figure, names, points
from rec_experiments.sweeps.jobs import Job, output_of

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
        output = output_of(job)
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


def output_folder(overrides: Iterable[str] = ()) -> Path:
    """Where a sweep with these overrides puts its runs."""
    chosen = [line.partition("=")[2] for line in overrides if line.startswith("output_dir=")]
    config = yaml.safe_load((schema.CONF / "config.yaml").read_text(encoding="utf-8"))
    return Path(chosen[-1] if chosen else config["output_dir"]).expanduser()


def launched(name: str, overrides: Sequence[str]) -> list[Job]:
    """The jobs of a sweep or a multirun, one for each run folder, as far as its manifest and the
    folders know them: a run that has not begun has an empty configuration, and a job that was never
    launched a folder that does not exist. Raises UserError if there is no such sweep or multirun.
    """
    output = output_folder(overrides)
    lines = read_manifest(output / FOLDER / f"{name}.csv")
    if name not in names() and lines:
        found = [(each.arm, each.column, shlex.split(each.overrides), each.run) for each in lines]
    else:
        figure = load_figure(name, overrides)
        runs = {line.key: line.run for line in lines}
        found = [
            (
                point.label, figure.heading(point), point.overrides,
                runs.get((point.label, job_key(point.overrides)), ""),
            )
            for point in points(figure, overrides)
        ]  # fmt: skip
    jobs = [
        Job(arm, column, words, _config(output / run), output / (run or f"not launched {number}"))
        for number, (arm, column, words, run) in enumerate(found)
    ]
    return list({job.path: job for job in reversed(jobs)}.values())[::-1]


def _config(run: Path) -> dict[str, Any]:
    """The configuration of a run, {} before it began or if it is damaged."""
    try:
        return read_config(run)
    except UserError:
        return {}
