"""The runs of docs/results as one table, for the scripts that write pages from them."""

import functools
import math
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas

from rec_experiments import sweeps
from rec_experiments.analysis.results.stability import RATE
from rec_experiments.analysis.results.statistics import final, initial, second_half
from rec_experiments.config.settings import ages, settings

RESULTS = Path(__file__).parent / "results"
ACCURACY = "eval/accuracy"
LANGUAGE_MODEL = "language_model_runs"  # an archive
COLUMNS = [
    "run", "arm", "task", "sync", "ages", "age", "seed", RATE, "gain", "final", "halved", "every",
]  # fmt: skip
FOUR_PARTS = "GRPO, four parts"  # the one method here that is no arm of a sweep
SHARED = (
    "seed", "setting", "sync", "optimizer", "model", "threads", "eval_problems", "checkpoint_every",
)  # fmt: skip
TASKS = {"mini/gsm8k": "reduction", "mini_chain/gsm8k": "chain", "lm/gsm8k": "language model"}


@functools.cache
def runs(archive: str) -> pandas.DataFrame:
    """A row for each run of docs/results/ARCHIVE.csv.xz; none if there is no such file.

    arm: the label of its method. task: of TASKS, or the setting. sync: as `schedule` writes it.
    ages: of the data at each gradient step; age: the largest. gain: mean accuracy of the second
    half minus the first evaluation. halved: the first evaluation at which the accuracy is at most
    half of the first; infinite if there is none. every: steps between evaluations.
    """
    file = RESULTS / f"{archive}.csv.xz"
    if not file.exists():
        return pandas.DataFrame(columns=COLUMNS)
    rows = pandas.read_csv(file, usecols=["run", "overrides", "step", ACCURACY])
    found = [
        {"run": run, **_run(line, of_run)}
        for (run, line), of_run in rows.groupby(["run", "overrides"])
    ]
    return pandas.DataFrame(found, columns=COLUMNS)


def _run(overrides: str, rows: pandas.DataFrame) -> dict[str, Any]:
    words, found = shlex.split(overrides), settings(overrides)
    curve = rows.set_index("step")[ACCURACY]
    halved = curve.index[curve <= curve.iloc[0] / 2]
    [setting] = [word.partition("=")[2] for word in words if word.startswith("setting=")]
    return {
        "arm": labels().get(_method(words), overrides),
        "task": TASKS.get(setting, setting),
        "sync": schedule(found["sync.interval"], found["sync.offset"]),
        "ages": ages(found),
        "age": max(ages(found)),
        "seed": found["seed"],
        RATE: found[RATE],
        "gain": second_half(curve) - initial(curve),
        "final": final(curve),
        "halved": halved[0] if len(halved) else math.inf,
        "every": curve.index[1],
    }


def schedule(interval: int | None = 1, offset: int = 0) -> str:
    """As in `interval 20`, `constant lag 10`, `offline` and, for fresh data, `interval 1`."""
    if interval is None:
        return "offline"
    return f"constant lag {offset}" if offset else f"interval {interval}"


@functools.cache
def labels() -> dict[frozenset[str], str]:
    arms = {
        label: words
        for figure in ("presets", "mechanism")
        for label, words in sweeps.load_figure(figure, []).arms.items()
    }
    return {_method(words): label for label, words in arms.items()} | {
        frozenset({"algo=grpo", "updates=four_parts"}): FOUR_PARTS
    }


def _method(words: Iterable[str]) -> frozenset[str]:
    """The words of a command line that make a method, numbers written alike."""
    pairs = [word.split("=", 1) for word in words]
    return frozenset(f"{key}={value}" for key, value in pairs if key.split(".")[0] not in SHARED)
