"""`python -m rec_experiments tune`: the learning rate of each method.

It is chosen from the runs of sweep=staleness_tuning: the one with the
highest mean of the final accuracy over the tuning seeds, the lower of two that are equal. A method
is tuned only if its whole budget was spent, so that all budgets are equal. The seeds are none that
methods are judged on.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rec_experiments import command, help
from rec_experiments.errors import UserError
from rec_experiments.files import write_atomic
from rec_experiments.results.collect import best_of, composed, places, scales
from rec_experiments.results.runs import Run, read_or_leave_out
from rec_experiments.results.statistics import final
from rec_experiments.sweeps import Job

SWEEP, KEY, METRIC = "staleness_tuning", "optimizer.learning_rate", "eval/accuracy"
OUT = "sweeps/staleness_tuned.yaml"
MINIATURES = "mini,mini_chain"
PAGE = help.Page(
    command="tune",
    usage=("[scale=NAME,…] [runs=FOLDER,…] [out=FILE]",),
    about=f"Chooses the learning rate of each method from the runs of sweep={SWEEP}, and writes "
    "the sweep of the methods with it.",
    entries={
        "scale=NAME,…": f"whose runs; default: {MINIATURES}",
        "runs=FOLDER,…": help.RUNS,
        "out=FILE": f"FILE.yaml, the sweep that is written; default: {OUT}",
    },
)
HEAD = """\
# @package hydra.sweeper
# The methods of sweep=staleness at the learning rate that suits each best, of an equal budget
# (sweeps/staleness_tuning.yaml). Made by `python -m rec_experiments tune`.
"""

Found = dict[float, dict[int, float]]  # rate: seed: final accuracy


def best_rate(found: Found) -> float:
    """The rate whose mean over seeds is highest; the lower one of equals."""
    return max(sorted(found), key=lambda rate: float(np.mean(list(found[rate].values()))))


def by_arm(runs: list[tuple[Job, Run]]) -> dict[str, Found]:
    """The final accuracy of each finished run, of the arms whose whole budget was spent."""
    found: dict[str, Found] = {}
    unfinished = {job.label for job, run in runs if not run.done}
    for job, run in runs:
        if job.label not in unfinished:
            rate = job.config["optimizer"]["learning_rate"]
            of_rate = found.setdefault(job.label, {}).setdefault(rate, {})
            of_rate[job.config["seed"]] = final(run.rows, METRIC)
    return found


def tuned_arms(found: Mapping[str, Found], arms: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """A legend label with the rate, and the overrides of the arm with it."""
    best = {arm: best_rate(each) for arm, each in found.items()}
    return {
        f"{arm}, tuned lr {rate:g}": [*arms[arm], f"{KEY}={rate!r}"] for arm, rate in best.items()
    }


def sweep(arms: Mapping[str, dict[str, list[str]]]) -> str:
    """The file of the tuned sweep. arms: by scale."""
    node: dict[str, Any] = {
        "defaults": ["staleness", "_self_"],
        "topic": "every preset at its best learning rate against the age of its data",
        "only": ["*, tuned *"],
        "at": {scale: {"arms": each} for scale, each in arms.items()},
    }
    return HEAD + yaml.safe_dump(node, sort_keys=False, allow_unicode=True, width=1000)


def read(scale: str, folders: list[Path] | None) -> dict[str, list[str]]:
    """The tuned arms of one scale; none without runs."""
    overrides = (f"scale={scale}",)
    figure, jobs = composed(SWEEP, overrides)
    runs = [
        (
            job,
            best_of(
                [
                    read_or_leave_out(job.label, job.heading, job.config["seed"], path)
                    for path in places(job.path, folders)
                ]
            ),
        )
        for job in jobs
    ]
    found = by_arm(runs)
    left = [arm for arm in figure.arms if arm not in found]
    print(f"{scale}: {len(found)} of {len(figure.arms)} methods tuned", file=sys.stderr)
    if found and left:
        print("  budget not spent: " + "; ".join(left), file=sys.stderr)
    return tuned_arms(found, figure.arms)


def run(arguments: list[str]) -> None:
    """Raises UserError for a wrong argument, and if no method could be tuned."""
    line = command.parse(arguments, "scale", "runs", "out")
    for word in (*line.words, *line.overrides):
        raise UserError(
            f"{word}: is not understood; allowed: scale=NAME,…, runs=FOLDER,…, out=FILE"
        )
    out = command.out_file(line, ".yaml") or Path(OUT)
    chosen = line.values.get("scale", MINIATURES).split(",")
    for scale in chosen:
        if scale not in scales():
            raise UserError(f"scale={scale}: no such scale; allowed: {', '.join(scales())}")
    arms = {scale: found for scale in chosen if (found := read(scale, line.runs))}
    if not arms:
        raise UserError(
            f"no runs that spend a whole budget; make them with: python -m rec_experiments -m "
            f"sweep={SWEEP} scale={chosen[0]}"
        )
    with command.writing(out):
        write_atomic(out, sweep(arms).encode())
    print(out)


def main(arguments: list[str]) -> None:
    command.plain_main(run, PAGE, arguments)


if __name__ == "__main__":
    with command.told_once():
        main(sys.argv[1:])
