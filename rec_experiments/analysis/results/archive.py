"""Many runs in one compressed file, so that others can judge them again without training.

The file is a table that pandas reads by itself (`pandas.read_csv(FILE)`): one row per evaluation of
a finished run. `run` is the name of the run folder, `overrides` what the sweep passed to the run,
`release` that of the package. `eval/accuracy` is the evaluation; every train/ column is the mean
over the gradient steps since the previous evaluation, and so has no value at step 0. Numbers are
rounded to DIGITS significant digits.

Every command that reads run folders (`runs=`) also reads such a file.
"""

import functools
import io
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas

from rec_experiments.analysis.results.runs import Row, Run, is_finite, points
from rec_experiments.errors import UserError, first_line

SUFFIX = ".csv.xz"
EVALUATION = "eval/accuracy"
AVERAGED = ("train/reward", "train/kl", "train/clip_fraction", "train/log_ratio_second_moment")
DIGITS = 4
Archived = tuple[list[Row], frozenset[int | None]]  # rows, releases


def is_archive(path: Path) -> bool:
    return path.name.endswith(SUFFIX)


def to_bytes(runs: Iterable[tuple[Run, list[str]]]) -> bytes:
    """The archive of finished runs, each with the overrides of its job; a run counts once."""
    once = {run.path.name: (run, overrides) for run, overrides in runs if run.done}
    rows = [row for name in sorted(once) for row in _rows(*once[name])]
    table = pandas.DataFrame(
        rows, columns=["run", "overrides", "release", "step", EVALUATION, *AVERAGED]
    )
    text = table.to_csv(index=False, float_format=f"%.{DIGITS}g")
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)


def _rows(run: Run, overrides: list[str]) -> Iterator[Row]:
    newest = max((release for release in run.releases if release is not None), default=None)
    steps, values = points(run.rows, EVALUATION)
    series = {metric: points(run.rows, metric) for metric in AVERAGED}
    before = 0
    for step, value in zip(steps, values, strict=True):
        yield {
            "run": run.path.name,
            "overrides": " ".join(overrides),
            "release": newest,
            "step": step,
            EVALUATION: value,
            **{metric: _mean(*series[metric], before, step) for metric in AVERAGED},
        }
        before = step


def _mean(steps: list[int], values: list[float], after: int, until: int) -> float | None:
    """Mean of the values at steps above `after`, up to `until`; None if there is none."""
    within = [value for step, value in zip(steps, values, strict=True) if after < step <= until]
    return float(np.mean(within)) if within else None


def read_run(arm: str, column: str, seed: int, path: Path) -> Run:
    """The run of an archive whose path is ARCHIVE/NAME; one that is not there has no rows.

    Raises UserError for a file that is no archive.
    """
    file = path.parent
    rows, releases = _read(file, file.stat().st_mtime_ns).get(path.name, ([], frozenset()))
    state = "done" if rows else "missing"
    return Run(
        arm=arm, column=column, seed=seed, path=path, state=state, rows=rows, releases=releases
    )


@functools.lru_cache(maxsize=8)
def _read(path: Path, changed: int) -> dict[str, Archived]:
    """changed: time of the last change of the file, as the cache's key."""
    try:
        table = pandas.read_csv(io.BytesIO(lzma.decompress(path.read_bytes())))
        groups = {str(name): group for name, group in table.groupby("run", sort=False)}
        return {name: (_plain(group), _releases(group)) for name, group in groups.items()}
    except (OSError, ValueError, KeyError, lzma.LZMAError) as error:
        raise UserError(f"{path}: is no archive of runs ({first_line(error)})") from None


def _plain(group: pandas.DataFrame) -> list[Row]:
    rows = group[["step", EVALUATION, *AVERAGED]].to_dict("records")
    return [{key: value for key, value in row.items() if is_finite(value)} for row in rows]


def _releases(group: pandas.DataFrame) -> frozenset[int | None]:
    return frozenset(None if np.isnan(each) else int(each) for each in group["release"].unique())
