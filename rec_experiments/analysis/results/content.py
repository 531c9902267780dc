"""One run, read from its folder or from an archive of runs.

An archive is a table that pandas reads by itself (`pandas.read_csv(FILE)`), compressed: a row for
each evaluation of a finished run (`archive.py`).
"""

import functools
import io
import itertools
import lzma
import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas

from rec_experiments.common.errors import UserError, first_line, printable
from rec_experiments.common.files import ARCHIVE
from rec_experiments.runs import provenance
from rec_experiments.runs.reading import Stamp, read_rows, stamp, unreadable
from rec_experiments.runs.run_folder import RunFolder

ACCURACY = "eval/accuracy"
LARGEST_ARCHIVE = 256 << 20  # bytes unpacked; fifty times the largest of this project
ARCHIVED = ["run", "overrides", "release", "step"]  # first columns of an archive; then metrics


class Content(NamedTuple):
    """What is in a run folder, or in an archive of a run. rows: `step` and the metrics."""

    state: str
    step: int
    release: int | None
    note: str
    rows: pandas.DataFrame


NOTHING = Content("missing", 0, None, "", pandas.DataFrame({"step": np.zeros(0, dtype=int)}))


def content(path: Path) -> Content:
    """The state and the rows of a run folder, or of ARCHIVE/RUN. A damaged run is reported on
    stderr; it is unreadable and has no rows."""
    if path.parent.name.endswith(ARCHIVE):
        return _archive(path.parent, path.parent.stat().st_mtime_ns).get(path.name, NOTHING)
    try:
        return _folder(path, stamp(path))
    except UserError as error:
        leave_out(str(error))
        return NOTHING._replace(state="unreadable", note=str(error))


@functools.lru_cache(maxsize=4096)
def _folder(path: Path, now: Stamp) -> Content:
    """now: sizes and times of the files, as the cache's key. Raises UserError for a damaged one."""
    folder = RunFolder(path)
    state = str(folder.status().get("state", "missing"))
    if state == "missing":
        return NOTHING
    releases = [each.get("release") for each in provenance.starts(folder.provenance())]
    rows = _frame(path / "metrics.jsonl")
    if state == "done":
        _check(path / "metrics.jsonl", rows)
    step = int(rows["step"].iloc[-1]) if len(rows) else 0
    return Content(state, step, max(filter(None, releases), default=None), "", rows)


def _frame(file: Path) -> pandas.DataFrame:
    """The rows of metrics.jsonl. Recorded values that are not finite become inf or -inf."""
    rows = [row for _, row in read_rows(file)]
    keys = dict.fromkeys(itertools.chain(*rows)) or {"step": None}
    try:
        columns = {
            key: np.array([math.inf if (x := row.get(key)) != x else x for row in rows], float)
            for key in keys
        }
    except (TypeError, ValueError, OverflowError) as error:
        raise unreadable(file, first_line(error)) from None
    return pandas.DataFrame(columns).astype({"step": int})


def _check(file: Path, rows: pandas.DataFrame) -> None:
    """Raise UserError unless a finished run has each step once, in order, and an evaluation at the
    end."""
    odd = np.flatnonzero(rows["step"] != np.arange(len(rows)))
    if len(odd):
        raise unreadable(file, f"it has step {rows['step'][odd[0]]} in place of step {odd[0]}")
    if rows.empty or pandas.isna(rows.get(ACCURACY, rows["step"] * math.nan).iloc[-1]):
        raise unreadable(file, "it has no evaluation at the end")


@functools.cache  # once per reason
def leave_out(reason: str) -> None:
    """Print on stderr why a run is left out."""
    print(f"left out: {printable(reason)}", file=sys.stderr)


def archived_overrides(file: Path) -> dict[str, str]:
    """The overrides of each run of an archive. Raises UserError for a file that is none."""
    found = _table(file, file.stat().st_mtime_ns)
    return dict(zip(found["run"], found["overrides"], strict=True))


@functools.lru_cache(maxsize=16)
def _archive(file: Path, changed: int) -> dict[str, Content]:
    """changed: time of the last change of the file, as the cache's key."""
    lines = _table(file, changed)
    numbers = lines.drop(columns=ARCHIVED[:-1])
    found = {}
    for run, places in lines.groupby("run", sort=False).indices.items():
        rows, release = numbers.take(places), lines["release"].iloc[places[0]]
        newest = None if pandas.isna(release) else int(release)
        found[str(run)] = Content("done", int(rows["step"].iloc[-1]), newest, "", rows)
    return found


@functools.lru_cache(maxsize=16)
def _table(file: Path, changed: int) -> pandas.DataFrame:
    """Raises UserError for a file that is no archive."""
    try:
        with lzma.open(file) as packed:  # which can unpack to a million times its size
            text = packed.read(LARGEST_ARCHIVE + 1)
        if len(text) > LARGEST_ARCHIVE:
            raise ValueError(f"it unpacks to more than {LARGEST_ARCHIVE >> 20} MB")
        found = pandas.read_csv(
            io.BytesIO(text),
            dtype={"run": str, "overrides": str, "release": "Int64"},
            float_precision="round_trip",
        )
        if [*found.columns[: len(ARCHIVED)]] != ARCHIVED:
            raise ValueError(f"its first columns are not {', '.join(ARCHIVED)}")
        found["overrides"] = found["overrides"].fillna("")
        found = found.astype(dict.fromkeys(found.columns[len(ARCHIVED) :], float) | {"step": int})
        first = ~found["run"].duplicated()
        rises = np.where(first, found["step"] == 0, found.groupby("run")["step"].diff() > 0)
        for bad, what in (
            (~rises, "its steps do not rise from 0"),
            (~found[ACCURACY].between(0, 1), f"{ACCURACY} is no share"),
        ):
            if bad.any():
                raise ValueError(f"{found['run'][bad].iloc[0]}: {what}")
        return found
    except (OSError, ValueError, KeyError, lzma.LZMAError) as error:
        raise UserError(f"{file}: is no archive of runs ({first_line(error)})") from None
