"""Lists the sweeps or the jobs of one, shows the states of its runs, waits for them, or runs those
that are missing."""

import shlex
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from rec_experiments.cli import train
from rec_experiments.cli.help import table
from rec_experiments.cli.parser import Overrides
from rec_experiments.config.labels import run_labels
from rec_experiments.errors import UserError, printable
from rec_experiments.sweeps.jobs import (
    Job,
    distinct,
    gpus_of,
    jobs,
    load_figure,
    names,
    outline,
    summary,
)
from rec_experiments.sweeps.state import ACTIVE, State, survey
from rec_experiments.sweeps.submission import RECORD, read

POLL = 15.0  # seconds between two looks at the queue


def main(
    action: Annotated[
        Literal["list", "status", "wait", "resubmit"],
        Parameter(
            help="list: print one job per line and run nothing; without SWEEP the names of all. "
            "status: print the state of each job; the exit code is 1 if one failed or is damaged. "
            "wait: the same, once no job is queued or running; the exit code is 1 unless all are "
            "done. resubmit: run the jobs that are not done, running or queued "
            "(hydra/launcher=NAME says where)"
        ),
    ],
    sweep: Annotated[
        str | None, Parameter(help="its name; for status and wait also the folder of a submission")
    ] = None,
    /,
    *overrides: Overrides,
) -> None:
    if sweep is None and action == "list":
        print("\n".join(table({name: load_figure(name).title for name in names()})))
        return
    if sweep is None:
        raise UserError(f"sweeps {action}: needs the name of a sweep; sweeps list names them")
    actions = {"list": show_jobs, "status": show_states, "wait": wait, "resubmit": resubmit}
    actions[action](sweep, [*overrides])


def show_jobs(name: str, overrides: list[str]) -> None:
    figure = load_figure(name, overrides)
    points, first = outline(figure, overrides)
    for point in points:
        print(shlex.join(point.overrides))
    print(summary(figure, len(points), gpus_of(first.config)), file=sys.stderr)


def show_states(name: str, overrides: list[str]) -> None:
    runs = _runs(name, overrides)
    states = survey(runs)
    print(*rows_of(runs, states), sep="\n")
    sys.exit(any(state.name in ("failed", "unreadable") for state in states.values()))


def wait(name: str, overrides: list[str]) -> None:
    runs = _runs(name, overrides)
    last = ""
    while True:
        states = survey(runs)
        if (now := counts(states)) != last:
            print(time.strftime("%H:%M:%S"), now, flush=True)
            last = now
        if not any(state.name in ACTIVE for state in states.values()):
            break
        time.sleep(POLL)
    print(*rows_of(runs, states), sep="\n")
    sys.exit(any(state.name != "done" for state in states.values()))


def resubmit(name: str, overrides: list[str]) -> None:
    sys.argv = [sys.argv[0], "--multirun", f"sweep={name}", *overrides]
    train.main()


def rows_of(runs: list[Job], states: dict[Path, State]) -> list[str]:
    """One line a job, and their number in each state."""
    lines = [f"{'state':<11} {'step':>11}  {'ends':<12}  run"]
    labels = run_labels([(job.config, job.overrides) for job in runs])
    for job, label in zip(runs, labels, strict=True):
        state = states[job.path]
        step = f"{state.step}/{job.config['steps']}"
        ends = f"{state.ends:%d %b %H:%M}" if state.ends else ""
        note = state.note or (f"by {state.release}" if state.release else "")
        line = f"{state.name:<11} {step:>11}  {ends:<12}  {label}  {job.path.name}  {note}"
        lines.append(printable(line.rstrip()))
    return [*lines, counts(states)]


def counts(states: dict[Path, State]) -> str:
    found = Counter(state.name for state in states.values())
    others = sum(bool(state.release) for state in states.values())
    return (
        f"{len(states)} runs: "
        + ", ".join(f"{n} {name}" for name, n in sorted(found.items()))
        + (f"; {others} of those done by another release" if others else "")
    )


def _runs(name: str, overrides: list[str]) -> list[Job]:
    """One job for each run folder."""
    if Path(name, RECORD).exists():
        return read(Path(name)).jobs
    figure = load_figure(name, overrides)
    return list(distinct(jobs(figure, overrides)).values())
