"""Many runs in one compressed file, so that others can judge them again without training.

The file is a table that pandas reads by itself (`pandas.read_csv(FILE)`): one row per evaluation of
a finished run. `run` is the name of the run folder, `overrides` what its command line set, and
`release` that of the package. `eval/accuracy` is the evaluation; every train/ column is the mean
over the gradient steps since the previous evaluation, and so has no value at step 0. Numbers have
DIGITS significant digits.

Every command that reads run folders (`runs=`) also reads such a file.
"""

import functools
import io
import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pandas

from rec_experiments.analysis.results.runs import Row, Run, is_finite, leave_out, points, read_run
from rec_experiments.errors import UserError, first_line
from rec_experiments.runs.run_folder import RunFolder

SUFFIX = ".csv.xz"
EVALUATION = "eval/accuracy"
AVERAGED = ("train/reward", "train/kl", "train/clip_fraction", "train/log_ratio_second_moment")
COLUMNS = ["run", "overrides", "release", "step", EVALUATION, *AVERAGED]
DIGITS = 4
OF_A_MACHINE = ("output_dir=", "run_dir=", "hydra.")  # overrides that say nothing of the experiment


def is_archive(path: Path) -> bool:
    return path.name.endswith(SUFFIX)


def archived(places: Iterable[Path]) -> tuple[bytes, int]:
    """The finished runs in folders and in other archives as the content of an archive, and their
    number. Of runs with the same name the first counts; damaged ones are reported on stderr.

    Raises UserError for a file that is no archive.
    """
    tables: dict[str, pandas.DataFrame] = {}
    for place in places:
        found = _tables(place) if is_archive(place) else _tables_in_folder(place)
        tables = {**dict(found), **tables}
    table = (
        pandas.concat([tables[name] for name in sorted(tables)]) if tables else pandas.DataFrame()
    )
    text = table.to_csv(index=False, float_format=f"%.{DIGITS}g")
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME), len(tables)


def _tables_in_folder(folder: Path) -> Iterator[tuple[str, pandas.DataFrame]]:
    for path in sorted(file.parent for file in folder.glob("*/status.json")):
        try:
            run = read_run("", "", 0, path)
            if run.done:
                rows = list(_rows(run, _overrides(RunFolder(path).provenance())))
                yield path.name, pandas.DataFrame(rows, columns=COLUMNS)
        except UserError as error:
            leave_out(str(error))


def _overrides(provenance: Row) -> str:
    words = [word for word in provenance.get("command", []) if "=" in word]
    return " ".join(word for word in words if not word.startswith(OF_A_MACHINE))


def _rows(run: Run, overrides: str) -> Iterator[Row]:
    newest = max((release for release in run.releases if release is not None), default=None)
    steps, values = points(run.rows, EVALUATION)
    series = {metric: points(run.rows, metric) for metric in AVERAGED}
    before = 0
    for step, value in zip(steps, values, strict=True):
        yield {
            "run": run.path.name,
            "overrides": overrides,
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


def read_archived(arm: str, column: str, seed: int, path: Path) -> Run:
    """The run of an archive whose path is ARCHIVE/NAME; one that is not there has no rows.

    Raises UserError for a file that is no archive.
    """
    table = _tables(path.parent).get(path.name)
    rows = [] if table is None else _plain(table)
    return Run(
        arm=arm, column=column, seed=seed, path=path, state="missing" if table is None else "done",
        rows=rows, releases=frozenset() if table is None else _releases(table),
    )  # fmt: skip


def _tables(file: Path) -> dict[str, pandas.DataFrame]:
    return _read(file, file.stat().st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _read(file: Path, changed: int) -> dict[str, pandas.DataFrame]:
    """changed: time of the last change of the file, as the cache's key."""
    try:
        table = pandas.read_csv(io.BytesIO(lzma.decompress(file.read_bytes())))[COLUMNS]
        return {str(name): rows for name, rows in table.groupby("run", sort=False)}
    except (OSError, ValueError, KeyError, lzma.LZMAError) as error:
        raise UserError(f"{file}: is no archive of runs ({first_line(error)})") from None


def _plain(table: pandas.DataFrame) -> list[Row]:
    rows = table[["step", EVALUATION, *AVERAGED]].to_dict("records")
    return [{key: value for key, value in row.items() if is_finite(value)} for row in rows]


def _releases(table: pandas.DataFrame) -> frozenset[int | None]:
    return frozenset(None if np.isnan(each) else int(each) for each in table["release"].unique())
