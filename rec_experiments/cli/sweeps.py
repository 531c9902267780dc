"""Lists the sweeps or the jobs of one, shows the states of its runs, or waits for them."""

import shlex
import sys
import time
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from rec_experiments.analysis import watch
from rec_experiments.cli.help import table
from rec_experiments.cli.parser import Overrides
from rec_experiments.common.errors import UserError
from rec_experiments.config.labels import gpus_of
from rec_experiments.sweeps.figures import load_figure, names, points
from rec_experiments.sweeps.jobs import compose_jobs
from rec_experiments.sweeps.manifest import launched
from rec_experiments.sweeps.state import ACTIVE

POLL = 15.0  # seconds between two looks at the queue


def main(
    action: Annotated[
        Literal["list", "status", "wait"],
        Parameter(
            help="list: print one job per line and run nothing; without SWEEP the names of all. "
            "status: print the state of each job; the exit code is 1 if one failed or is damaged. "
            "wait: the same, once no job is queued or running; the exit code is 1 unless all are "
            "done"
        ),
    ],
    sweep: Annotated[str | None, Parameter(help="the name of a sweep or multirun")] = None,
    /,
    *overrides: Overrides,
) -> None:
    if sweep is None and action == "list":
        print("\n".join(table({name: load_figure(name).title for name in names()})))
        return
    if sweep is None:
        raise UserError(f"sweeps {action}: needs the name of a sweep; sweeps list names them")
    actions = {"list": show_jobs, "status": show_states, "wait": wait}
    actions[action](sweep, [*overrides])


def show_jobs(name: str, overrides: list[str]) -> None:
    """Composes the first job alone: the others are neither checked nor known by their folders."""
    figure = load_figure(name, overrides)
    runs = list({frozenset(each.overrides): each for each in points(figure, overrides)}.values())
    [first] = compose_jobs(runs[:1])
    for point in runs:
        print(shlex.join(point.overrides))
    number, gpus, hours = len(runs), gpus_of(first.config), figure.hours
    needs = f"{number} runs, no GPU, about {number * hours:.1f} hours on one core"
    if gpus:
        needs = (
            f"{number} runs, each on {gpus} GPU for about {hours:g} h: {number * gpus} GPUs to run "
            f"all at once, {number * gpus * hours:g} GPU-hours"
        )
    print(needs, file=sys.stderr)


def show_states(name: str, overrides: list[str]) -> None:
    found = watch.lines(launched(name, overrides))
    watch.show(found, Console(highlight=False))
    sys.exit(any(line.state.name in ("failed", "unreadable") for line in found))


def wait(name: str, overrides: list[str]) -> None:
    runs = launched(name, overrides)
    last = ""
    while True:
        found = watch.lines(runs)
        if (now := watch.count(found)) != last:
            print(time.strftime("%H:%M:%S"), now, flush=True)
            last = now
        if not any(line.state.name in ACTIVE for line in found):
            break
        time.sleep(POLL)
    watch.show(found, Console(highlight=False))
    sys.exit(any(line.state.name != "done" for line in found))
