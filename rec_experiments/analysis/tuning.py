"""The learning rate of each method.

The rate with the highest mean final accuracy over the tuning seeds is chosen from the runs of
sweep=staleness_tuning, the lower of two equal ones. A method is tuned only if all its runs have
finished, so all methods have the same budget. Tuning seeds are not used for evaluation.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rec_experiments.analysis.results.figure_data import NoRuns, collect, composed
from rec_experiments.analysis.results.formatting import text_table
from rec_experiments.analysis.results.runs import Run, releases_text
from rec_experiments.analysis.results.statistics import final, if_any
from rec_experiments.analysis.results.summary import duplicates
from rec_experiments.config import schema
from rec_experiments.errors import UserError
from rec_experiments.files import read_regular
from rec_experiments.sweeps import Job

SWEEP, KEY, METRIC = "staleness_tuning", "optimizer.learning_rate", "eval/accuracy"
BASE = "staleness"  # the sweep whose methods are tuned
OUT = "sweeps/staleness_tuned.yaml"
MINIATURES = "mini,mini_chain"
MADE_BY = "Made by `python -m rec_experiments tune`."
HEAD = f"""\
# @package hydra.sweeper
# The methods of sweep={BASE} at the learning rate that suits each best, of an equal budget
# (sweeps/{SWEEP}.yaml). {MADE_BY}
# A label has the rate: less is chosen by 'hydra.sweeper.only=["GRPO,*","REC-*"]'.
"""

Found = dict[float, dict[int, float]]  # rate: seed: final accuracy
Arms = dict[str, list[str]]


def means(found: Found) -> dict[float, float]:
    """Over seeds, the lowest rate first."""
    return {rate: float(np.mean(list(found[rate].values()))) for rate in sorted(found)}


def best_rate(found: Found) -> float:
    """The rate whose mean over seeds is highest; the lower one of equals."""
    of_rate = means(found)
    return max(of_rate, key=lambda rate: of_rate[rate])


def by_arm(runs: Iterable[tuple[Job, Run]]) -> dict[str, Found]:
    """The final accuracy of each finished run, of the arms whose whole budget was spent."""
    found: dict[str, Found] = {}
    unfinished = set()
    for job, run in runs:
        value = if_any(final, run.rows, METRIC) if run.done else None
        if value is None:
            unfinished.add(job.label)
        else:
            rate = job.config["optimizer"]["learning_rate"]
            found.setdefault(job.label, {}).setdefault(rate, {})[job.config["seed"]] = value
    return {arm: of_arm for arm, of_arm in found.items() if arm not in unfinished}


def tuned_arms(found: Mapping[str, Found], arms: Mapping[str, list[str]]) -> Arms:
    """A legend label with the rate, and the overrides of the arm with it."""
    best = {arm: best_rate(each) for arm, each in found.items()}
    return {f"{arm}, lr {rate:g}": [*arms[arm], f"{KEY}={rate!r}"] for arm, rate in best.items()}


def table(found: Mapping[str, Found]) -> list[list[str]]:
    """Head and one row a method: the mean final accuracy at each rate, and the rate chosen, with a
    word where it is at an end of those tried: a better one may lie beyond."""
    rates = sorted({rate for each in found.values() for rate in each})
    ends = {rates[0]: ", the lowest", rates[-1]: ", the highest"}
    rows = []
    for arm, each in found.items():
        of_rate, best = means(each), best_rate(each)
        cells = [f"{of_rate[rate]:.3f}" for rate in rates]
        rows.append([arm, *cells, f"{best:g}{ends.get(best, '')}"])
    return [["method", *(f"{rate:g}" for rate in rates), "chosen"], *rows]


def sweep(at: Mapping[str, dict[str, Any]]) -> str:
    """The file of the tuned sweep: as the sweep of the methods, with no other arms than the tuned
    ones. at: what holds at each scale."""
    node = yaml.safe_load((schema.CONF / "sweep" / f"{BASE}.yaml").read_text(encoding="utf-8"))
    del node["arms"]
    node |= {
        "topic": "methods at their best learning rate against the age of their data",
        "fixed": [KEY],
        "at": dict(at),
    }
    return HEAD + yaml.safe_dump(node, sort_keys=False, allow_unicode=True, width=1000)


def written_before(out: Path) -> dict[str, dict[str, Any]]:
    """What the file has for each scale; nothing if it is not there.

    Raises UserError for a file that `tune` has not written, or that cannot be read.
    """
    try:
        text = read_regular(out).decode()
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"out={out}: is there and cannot be read ({error})") from error
    if not any(MADE_BY in line for line in text.splitlines()[: HEAD.count("\n")]):
        raise UserError(f"out={out}: is there and was not written by tune; choose another name")
    try:
        return dict(yaml.safe_load(text)["at"])
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"out={out}: is there and is damaged; remove it") from error


def read(scale: str, folders: list[Path] | None) -> Arms:
    """The tuned arms of one scale; none without runs. Prints what they were chosen from."""
    overrides = [f"scale={scale}"]
    figure, jobs = composed(SWEEP, tuple(overrides))
    arms = figure.chosen()
    try:
        runs = collect(SWEEP, folders, overrides).runs
    except NoRuns:
        runs = []
    found = by_arm(zip(jobs, runs, strict=True)) if runs else {}
    left = [arm for arm in arms if arm not in found]
    failed = {job.label for job, run in zip(jobs, runs, strict=bool(runs)) if run.state == "failed"}
    print(f"{scale}: {len(found)} of {len(arms)} methods tuned", file=sys.stderr)
    if found and left:
        told = [f"{arm} (a run of it failed)" if arm in failed else arm for arm in left]
        print("  budget not spent: " + "; ".join(told), file=sys.stderr)
    for sentence in [releases_text(runs), *duplicates(runs)]:
        print(f"  {sentence}", file=sys.stderr)
    if found:
        title = f"scale={scale}: mean final accuracy by learning rate"
        print(title, *text_table(table(found)), "", sep="\n")
    return tuned_arms(found, arms)
