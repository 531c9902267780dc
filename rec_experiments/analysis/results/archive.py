"""Many runs in one compressed file, so that others can judge them again without training.

The file is the table of the finished runs at their evaluations, which pandas reads by itself
(`pandas.read_csv(FILE)`): the columns ARCHIVED, then metrics. Every train/ column is the mean over
the gradient steps since the previous evaluation, and so has no value at step 0. A metric has a
column if some run has it. Numbers have DIGITS significant digits.
"""

import functools
import io
import lzma
import shlex
from pathlib import Path

import numpy as np
import pandas

from rec_experiments.analysis.results.statistics import ACCURACY
from rec_experiments.common.errors import UserError, first_line

ARCHIVED = ["run", "overrides", "release", "step"]
EVALUATED = (ACCURACY, "eval/response_length")
AVERAGED = (
    "train/reward", "train/kl", "train/clip_fraction", "train/log_ratio_second_moment",
    "train/mismatch", "train/mismatch_max", "train/late", "train/late_accuracy",
)  # fmt: skip
DIGITS = 4
DAMAGES = (
    ArithmeticError, EOFError, LookupError, OSError, TypeError, ValueError, lzma.LZMAError,
)  # fmt: skip
LARGEST = 256 << 20  # bytes unpacked; fifty times the largest of this project


def archived(steps: pandas.DataFrame) -> bytes:
    """The content of an archive. steps: of finished runs, with their overrides."""
    steps = steps.replace([np.inf, -np.inf], np.nan)
    metrics = [metric for metric in (*EVALUATED, *AVERAGED) if metric in steps]
    at = steps[ACCURACY].notna()
    since = steps["run"].map(str) + (at.groupby(steps["run"]).cumsum() - at).map("/{}".format)
    means = steps[[*metrics]].groupby(since, sort=False).transform("mean")
    rows = steps[ARCHIVED].join(means)[at].dropna(axis=1, how="all")
    text = rows.to_csv(index=False, float_format=f"%.{DIGITS}g")
    return lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)


def read_archive(file: Path) -> pandas.DataFrame:
    """The table of an archive, indexed by run. Raises UserError for a file that is none."""
    return _read(file, file.stat().st_mtime_ns if file.exists() else 0)


@functools.lru_cache(maxsize=16)
def _read(file: Path, changed: int) -> pandas.DataFrame:
    """changed: time of the last change of the file, as the cache's key."""
    try:
        with lzma.open(file) as packed:  # which can unpack to a million times its size
            text = packed.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise ValueError(f"it unpacks to more than {LARGEST >> 20} MB")
        found = pandas.read_csv(
            io.BytesIO(text),
            dtype={"run": str, "overrides": str, "release": "Int64", "step": int},
            float_precision="round_trip",
        )
        if [*found.columns[: len(ARCHIVED)]] != ARCHIVED:
            raise ValueError(f"its first columns are not {', '.join(ARCHIVED)}")
        found["overrides"] = found["overrides"].fillna("")
        for line in found["overrides"].unique():
            shlex.split(line)  # raises ValueError if a quote is not closed
        metrics = found.columns[len(ARCHIVED) :]
        found = found.astype(dict.fromkeys(metrics, float))
        begins = ~found["run"].duplicated()
        named = found["run"].map(lambda run: isinstance(run, str) and run == Path(run).name)
        rises = np.where(begins, found["step"] == 0, found.groupby("run")["step"].diff() > 0)
        first = found.groupby("run", dropna=False)["overrides"].transform("first")
        for good, otherwise in (
            (named, "is no name of a run folder"),
            (found["overrides"] == first, "its overrides are not the same in all rows"),
            (rises, "its steps do not rise from 0"),
            (found[ACCURACY].between(0, 1), f"{ACCURACY} is no share"),
        ):
            if not good.all():
                raise ValueError(f"{found['run'][~good].iloc[0]}: {otherwise}")
        return found.set_index("run")
    except DAMAGES as error:
        raise UserError(f"{file}: is no archive of runs ({first_line(error)})") from None
