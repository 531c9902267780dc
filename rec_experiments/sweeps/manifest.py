"""The manifest of a sweep: which run folder holds which job.

OUTPUT_DIR/manifests/NAME.csv has a line for each job, written when the sweep is launched. NAME is
that of the sweep, or multirun-DIGEST for values that the command line lists.
"""

import csv
import hashlib
import io
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rec_experiments.common.errors import UserError
from rec_experiments.common.files import write_atomic
from rec_experiments.config.labels import methods, schedule_name, without_shared
from rec_experiments.config.settings import experiment, file_values
from rec_experiments.runs.run_folder import read_config
from rec_experiments.sweeps.figures import load_figure, names, points
from rec_experiments.sweeps.jobs import Job, output_of

FOLDER = "manifests"


class Line(NamedTuple):
    """One job. figure: the manifest's name. column: the heading of the job's column. run: its run
    folder within output_dir. overrides: the job's command line, quoted for a shell."""

    figure: str
    arm: str
    column: str
    seed: int
    run: str
    overrides: str

    @property
    def job(self) -> tuple[str, str]:
        """The arm and its experiment, however that is written."""
        return self.arm, experiment(self.overrides)


def multirun_name(overrides: Iterable[str]) -> str:
    """The name of the manifest of a multirun that is no figure's."""
    digest = hashlib.sha256(shlex.join(sorted(overrides)).encode()).hexdigest()
    return f"multirun-{digest[:8]}"


def write_manifest(name: str, jobs: Sequence[Job]) -> Path:
    """Write the jobs into the manifest of their output folder, and return that file.

    A job without an arm or a column has its method or its schedule there. A new line replaces that
    of the same job, and that of the same run in the same arm; the others stay. Raises UserError if
    an old manifest is damaged, and for jobs of several output folders.
    """
    output, *others = dict.fromkeys(output_of(job) for job in jobs)
    if others:
        raise UserError(f"output_dir={output},{others[0]}: must be one folder for all runs")
    file = output / FOLDER / f"{name}.csv"
    arms, _ = without_shared(methods([(job.config, job.overrides) for job in jobs]))
    lines = []
    for job, method in zip(jobs, arms, strict=True):
        inside = job.path.is_relative_to(output)
        lines.append(
            Line(
                figure=name,
                arm=job.label or method,
                column=job.heading or schedule_name(job.config["sync"]),
                seed=job.config["seed"],
                run=str(job.path.relative_to(output) if inside else job.path.absolute()),
                overrides=shlex.join(job.overrides),
            )
        )
    new = {line.job for line in lines} | {(line.arm, line.run) for line in lines}
    old = read_manifest(file)
    kept = [each for each in old if new.isdisjoint([each.job, (each.arm, each.run)])]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([Line._fields, *kept, *lines])
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, text.getvalue().encode())
    return file


def read_manifest(file: Path) -> list[Line]:
    """The lines of a manifest; [] if there is none. Raises UserError if it is damaged."""
    try:
        text = file.read_text(encoding="utf-8")
        if "\0" in text:
            raise ValueError("it holds a null byte")
        header, *rows = csv.reader(text.splitlines())
        if header != [*Line._fields]:
            raise ValueError(f"its columns are not {','.join(Line._fields)}")
        lines = [
            Line(figure, arm, column, int(seed), run, overrides)
            for figure, arm, column, seed, run, overrides in rows
        ]
        for line in lines:
            shlex.split(line.overrides)  # raises ValueError if a quote is not closed
        return lines
    except FileNotFoundError:
        return []
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(
            f"{file}: cannot be read ({error}); remove it, and start the sweep again: finished "
            "runs are kept"
        ) from None


def output_folder(overrides: Iterable[str] = ()) -> Path:
    """Where a sweep with these overrides puts its runs."""
    usual, _ = file_values("config")
    chosen = [line.partition("=")[2] for line in overrides if line.startswith("output_dir=")]
    return Path([usual["output_dir"], *chosen][-1]).expanduser()


def launched(name: str, overrides: Sequence[str]) -> list[Job]:
    """The jobs of a sweep or a multirun, one for each run folder, as far as its manifest and the
    folders know them: a run that has not begun has an empty configuration, and a job that was never
    launched a folder that does not exist. Raises UserError if there is no such sweep or multirun.
    """
    output = output_folder(overrides)
    lines = read_manifest(output / FOLDER / f"{name}.csv")
    if name in names() or not lines:
        runs = {line.job: line.run for line in lines}
        found = points(load_figure(name, overrides), overrides)
        words = [shlex.join(point.overrides) for point in found]
        lines = [
            Line(name, point.label, point.heading, 0, f"not launched {number}", words[number])
            for number, point in enumerate(found)
        ]
        lines = [line._replace(run=runs.get(line.job, line.run)) for line in lines]
    jobs: dict[Path, Job] = {}
    for line in lines:
        path, words = output / line.run, shlex.split(line.overrides)
        jobs.setdefault(path, Job(line.arm, line.column, words, _config(path), path))
    return list(jobs.values())


def _config(run: Path) -> dict[str, Any]:
    """The configuration of a run, {} before it began or if it is damaged."""
    try:
        return read_config(run)
    except UserError:
        return {}
