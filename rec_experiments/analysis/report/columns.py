"""The metrics of a run as columns of numbers, for the page's curves."""

import itertools
import math
from collections.abc import Sequence
from types import NoneType

import numpy as np
from numpy.typing import NDArray

from rec_experiments.analysis.results.runs import NUMBER, Row
from rec_experiments.analysis.results.statistics import seconds_of_steps

Column = NDArray[np.float32]  # one number per row, NaN if not measured

MOST_ROWS = 400  # of a run in the page; a longer run keeps every n-th row and all evaluations
EVALUATED = "eval/accuracy"
# Running totals, which are columns besides the metrics.
TOTALS = {
    "step": "gradient steps",
    "tokens": "response tokens trained on",
    "seconds": "seconds of all steps so far",
}


def columns(rows: Sequence[Row]) -> dict[str, Column]:
    """The columns of each metric and of TOTALS. Raises OverflowError for an integer beyond all
    floats, TypeError for times or tokens that are no numbers."""
    kinds = dict.fromkeys(map(tuple, rows))  # few, as most rows have the same keys
    metrics = [key for key in dict.fromkeys(itertools.chain(*kinds)) if "/" in key]
    totals = {
        "step": [row["step"] for row in rows],
        "tokens": itertools.accumulate(row.get("tokens/response", 0) for row in rows),
        "seconds": itertools.accumulate(seconds_of_steps(rows)),
    }
    every, last = max(1, math.ceil(len(rows) / MOST_ROWS)), len(rows) - 1
    kept = [n for n, row in enumerate(rows) if n % every == 0 or n == last or EVALUATED in row]
    measured = ([row.get(key) for row in rows] for key in metrics)
    numbers = [_numbers(values) for values in [*map(list, totals.values()), *measured]]
    with np.errstate(over="ignore"):
        found = np.array(numbers, dtype=np.float64).astype(np.float32)[:, kept]
    found[~np.isfinite(found)] = np.nan
    return dict(zip([*totals, *metrics], found, strict=True))


def _numbers(values: Sequence[object]) -> Sequence[object]:
    """The values, with None or NaN for what is no number."""
    if set(map(type, values)) <= {int, float, NoneType}:  # the usual case, fast
        return values
    return [value if isinstance(value, NUMBER) else None for value in values]
