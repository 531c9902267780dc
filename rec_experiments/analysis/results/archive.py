"""Many runs in one compressed file, so that others can judge them again without training.

The file is the table of the finished runs at their evaluations, which pandas reads by itself
(`pandas.read_csv(FILE)`): the columns ARCHIVED, then metrics. Every train/ column is the mean over
the gradient steps since the previous evaluation, and so has no value at step 0. A metric has a
column if some run has it. Numbers have DIGITS significant digits.
"""

import lzma
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from rec_experiments.analysis.results.content import ACCURACY, ARCHIVED
from rec_experiments.analysis.results.table import runs, table

EVALUATED = (ACCURACY, "eval/response_length")
AVERAGED = (
    "train/reward", "train/kl", "train/clip_fraction", "train/log_ratio_second_moment",
    "train/mismatch", "train/mismatch_max", "train/late", "train/late_accuracy",
)  # fmt: skip
DIGITS = 4


def archived(places: Iterable[Path]) -> tuple[bytes, int]:
    """The finished runs in folders and in other archives as the content of an archive, and their
    number. Raises UserError for a file that is no archive."""
    found = runs(places)
    done = found[found["state"] == "done"].drop_duplicates("run").sort_values("run")
    if done.empty:
        return b"", 0
    steps = table(done, ["overrides"]).replace([np.inf, -np.inf], np.nan)
    metrics = [metric for metric in (*EVALUATED, *AVERAGED) if metric in steps]
    at = steps[ACCURACY].notna()
    since = steps["run"].map(str) + (at.groupby(steps["run"]).cumsum() - at).map("/{}".format)
    means = steps[[*metrics]].groupby(since, sort=False).transform("mean")
    rows = steps[ARCHIVED].join(means)[at].dropna(axis=1, how="all")
    text = rows.to_csv(index=False, float_format=f"%.{DIGITS}g")
    content = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
    return content, len(done)
