"""Many runs in one compressed file, so that others can judge them again without training.

The file is a table that pandas reads by itself (`pandas.read_csv(FILE)`): one row per evaluation of
a finished run. `run` is the name of the run folder, `overrides` what its command line set, and
`release` that of the package. eval/ columns are evaluations; every train/ column is the mean over
the gradient steps since the previous evaluation, and so has no value at step 0. A metric has a
column if some run has it. Numbers have DIGITS significant digits.

`figures` and `claims` read such a file as `runs=FILE`.
"""

import csv
import functools
import io
import lzma
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from rec_experiments.analysis.results.runs import Row, Run, leave_out, points, read_run, run_folders
from rec_experiments.errors import UserError, first_line
from rec_experiments.files import ARCHIVE
from rec_experiments.runs.run_folder import RunFolder

EVALUATION = "eval/accuracy"
EVALUATED = (EVALUATION, "eval/response_length")
AVERAGED = (
    "train/reward", "train/kl", "train/clip_fraction", "train/log_ratio_second_moment",
    "train/mismatch", "train/mismatch_max", "train/late", "train/late_accuracy",
)  # fmt: skip
COLUMNS = ["run", "overrides", "release", "step"]  # the first ones; the others are metrics
DIGITS = 4
OF_A_MACHINE = ("output_dir=", "run_dir=", "hydra.")  # overrides that say nothing of the experiment
Lines = list[dict[str, str]]  # of one run


def is_archive(path: Path) -> bool:
    return path.name.endswith(ARCHIVE)


def archived(places: Iterable[Path]) -> tuple[bytes, int]:
    """The finished runs in folders and in other archives as the content of an archive, and their
    number. Of runs with the same name the first counts. Copies with other numbers, and damaged
    runs, are reported on stderr.

    Raises UserError for a file that is no archive.
    """
    runs: dict[str, Lines] = {}
    for place in places:
        found = _runs(place) if is_archive(place) else dict(_runs_in_folder(place))
        for name in found.keys() & runs.keys():
            if _numbers(found[name]) != _numbers(runs[name]):
                leave_out(f"{place / name}: an earlier copy has other numbers")
        runs = {**found, **runs}
    measured = {name for lines in runs.values() for line in lines for name in line if line[name]}
    metrics = [name for name in (*EVALUATED, *AVERAGED) if name in measured]
    text = io.StringIO()
    writer = csv.DictWriter(
        text, [*COLUMNS, *metrics], restval="", extrasaction="ignore", lineterminator="\n"
    )
    writer.writeheader()
    for name in sorted(runs):
        writer.writerows(runs[name])
    content = lzma.compress(text.getvalue().encode(), preset=9 | lzma.PRESET_EXTREME)
    return content, len(runs)


def _numbers(lines: Lines) -> list[dict[str, str]]:
    """Steps and metrics. Those without a value are left out: an archive may lack their columns."""
    return [
        {key: line[key] for key in line if line[key] and (key == "step" or key not in COLUMNS)}
        for line in lines
    ]


def _runs_in_folder(folder: Path) -> Iterator[tuple[str, Lines]]:
    for path in run_folders([folder]):
        try:
            run = read_run("", "", 0, path)
            if run.done:
                yield path.name, list(_lines(run, _overrides(RunFolder(path).provenance())))
        except UserError as error:
            leave_out(str(error))


def _overrides(provenance: Row) -> str:
    words = [word for word in provenance.get("command", []) if "=" in word]
    return " ".join(word for word in words if not word.startswith(OF_A_MACHINE))


def _lines(run: Run, overrides: str) -> Iterator[dict[str, str]]:
    newest = max((release for release in run.releases if release is not None), default=None)
    steps, _ = points(run.rows, EVALUATION)
    evaluated = {metric: dict(zip(*points(run.rows, metric), strict=True)) for metric in EVALUATED}
    series = {metric: points(run.rows, metric) for metric in AVERAGED}
    before = 0
    for step in steps:
        values = {metric: evaluated[metric].get(step) for metric in EVALUATED}
        means = {metric: _mean(*series[metric], before, step) for metric in AVERAGED}
        yield {
            "run": run.path.name,
            "overrides": overrides,
            "release": _written(newest),
            "step": str(step),
            **{metric: _written(number) for metric, number in {**values, **means}.items()},
        }
        before = step


def _mean(steps: list[int], values: list[float], after: int, until: int) -> float | None:
    """Mean of the values at steps above `after`, up to `until`; None if there is none."""
    within = [value for step, value in zip(steps, values, strict=True) if after < step <= until]
    return float(np.mean(within)) if within else None


def _written(number: float | None) -> str:
    return "" if number is None else f"{number:.{DIGITS}g}"


def read_archived(arm: str, column: str, seed: int, path: Path, steps: int, eval_every: int) -> Run:
    """The run of an archive whose path is ARCHIVE/NAME; one that is not there has no rows. steps,
    eval_every: of the finished run; one without all its evaluations is reported on stderr and has
    no rows.

    Raises UserError for a file that is no archive.
    """
    lines = _runs(path.parent).get(path.name, [])
    rows = [_row(line) for line in lines]
    state, note = "done" if lines else "missing", ""
    absent = {*range(0, steps, eval_every), steps} - {row["step"] for row in rows}
    if rows and absent:
        note = f"{path}: it has no evaluation at step {min(absent)}"
        leave_out(note)
        state, rows = "unreadable", []
    return Run(
        arm=arm, column=column, seed=seed, path=path, state=state, rows=rows, note=note,
        releases=frozenset(map(_release, lines)),
    )  # fmt: skip


def _release(line: dict[str, str]) -> int | None:
    return int(line["release"]) if line["release"] else None


def _row(line: dict[str, str]) -> Row:
    measured = {name: float(line[name]) for name in line if name not in COLUMNS and line[name]}
    return {"step": int(line["step"]), **measured}


def _runs(file: Path) -> dict[str, Lines]:
    return _read(file, file.stat().st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _read(file: Path, changed: int) -> dict[str, Lines]:
    """changed: time of the last change of the file, as the cache's key."""
    try:
        reader = csv.DictReader(io.StringIO(lzma.decompress(file.read_bytes()).decode()))
        if list(reader.fieldnames or [])[: len(COLUMNS)] != COLUMNS:
            raise ValueError(f"its first columns are not {', '.join(COLUMNS)}")
        runs: dict[str, Lines] = {}
        for line in reader:
            _check_line(line)
            runs.setdefault(line["run"], []).append(line)
        for name, lines in runs.items():
            steps = [int(line["step"]) for line in lines]
            if steps[0] != 0 or steps != sorted(set(steps)):
                raise ValueError(f"{name}: its steps do not rise from 0")
        return runs
    except (OSError, ValueError, csv.Error, lzma.LZMAError) as error:
        raise UserError(f"{file}: is no archive of runs ({first_line(error)})") from None


def _check_line(line: dict[str, str]) -> None:
    """Raises ValueError for a row that is no evaluation."""
    if None in line or None in line.values():
        raise ValueError(f"{line['run']}: a row has other columns than the head")
    _release(line)
    accuracy = _row(line).get(EVALUATION, math.nan)
    if not 0 <= accuracy <= 1:
        raise ValueError(f"{line['run']}: {EVALUATION} is {accuracy} at step {line['step']}")
