"""The rows of a run as columns of numbers, and columns as text that a page can carry.

A number keeps the three upper bytes of its float32, which is five digits. Of all numbers of a
metric the first bytes come first, then the second, then the third: so they compress to about half.
"""

import base64
import itertools
import math
import zlib
from collections.abc import Sequence
from types import NoneType

import numpy as np
from numpy.typing import NDArray

from rec_experiments.analysis.report.beside import forked
from rec_experiments.analysis.results.runs import NUMBER, Row
from rec_experiments.analysis.results.statistics import seconds_of_steps

Column = NDArray[np.float32]  # a number a row, NaN where it was not measured

MOST_ROWS = 400  # of a run in the page; of a longer one every n-th row, and those with evaluations
EVALUATED = "eval/accuracy"
LEVEL = 4  # of compression: 6 makes a page 1 % smaller in twice the time
# What has passed by a row, beside its metrics.
PASSED = {
    "step": "gradient steps",
    "tokens": "response tokens trained on",
    "seconds": "seconds that the steps took",
}


def columns(rows: Sequence[Row]) -> dict[str, Column]:
    """By metric, and by each of PASSED. Raises OverflowError for a whole number beyond all floats,
    TypeError for times or tokens that are no numbers."""
    kinds = dict.fromkeys(
        map(tuple, rows)
    )  # few: rows with and without an evaluation, and the like
    metrics = [key for key in dict.fromkeys(itertools.chain(*kinds)) if "/" in key]
    passed = {
        "step": [row["step"] for row in rows],
        "tokens": itertools.accumulate(row.get("tokens/response", 0) for row in rows),
        "seconds": itertools.accumulate(seconds_of_steps(rows)),
    }
    measured = ([row.get(key) for row in rows] for key in metrics)
    found = _columns([*map(list, passed.values()), *measured])[:, _kept(rows)]
    return dict(zip([*passed, *metrics], found, strict=True))


def _kept(rows: Sequence[Row]) -> list[int]:
    """Numbers of the rows that a page shows."""
    every, last = max(1, math.ceil(len(rows) / MOST_ROWS)), len(rows) - 1
    return [n for n, row in enumerate(rows) if n % every == 0 or n == last or EVALUATED in row]


def _columns(values: Sequence[Sequence[object]]) -> Column:
    """All at once, as a row each; NaN for what is no finite number."""
    numbers = [
        each
        if set(map(type, each)) <= {int, float, NoneType}  # None becomes NaN; quick to see
        else [v if isinstance(v, NUMBER) else math.nan for v in each]
        for each in values
    ]
    with np.errstate(over="ignore"):
        found = np.array(numbers, dtype=np.float64).astype(np.float32)
    found[~np.isfinite(found)] = np.nan
    return found


def packed(runs: Sequence[dict[str, Column]]) -> dict[str, str]:
    """By metric, the columns of all runs, one run after another; NaN for a run without it."""
    keys = list(dict.fromkeys(key for run in runs for key in run))

    def of_all(key: str) -> str:
        of_each = [run[key] if key in run else np.full_like(run["step"], np.nan) for run in runs]
        return pack(np.concatenate(of_each))

    with forked(of_all, keys) as found:
        return dict(zip(keys, found, strict=True))


def pack(column: Column) -> str:
    """A column as text; explore.js reads it."""
    bits = column.view(np.uint32).astype(np.uint64) + 0x80  # rounds to the third byte
    planes = np.stack([bits >> 24, bits >> 16, bits >> 8]).astype(np.uint8)
    return base64.b64encode(zlib.compress(planes.tobytes(), LEVEL)).decode()
