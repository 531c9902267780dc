"""`python -m rec_experiments sweeps`: the jobs of a sweep and what has become of them."""

import shlex
import sys
import time
from collections import Counter
from pathlib import Path

from rec_experiments.cli import command, help, train
from rec_experiments.errors import UserError, printable
from rec_experiments.sweeps.jobs import Job, distinct, jobs, load_figure, names, summary
from rec_experiments.sweeps.state import ACTIVE, State, survey
from rec_experiments.sweeps.submission import RECORD, read

POLL = 15.0  # seconds between two looks at the queue


def page() -> help.Page:
    return help.Page(
        command="sweeps",
        usage=("list|status|wait|resubmit FIGURE [KEY=VALUE …]",),
        about="The jobs of a sweep and what has become of them.",
        entries={
            "list": "one job a line; runs nothing",
            "status": "what has become of each job; the exit code is 1 if one failed or is damaged",
            "wait": "the same once nothing is queued or running any more; the exit code is 1 "
            "unless all is done",
            "resubmit": "run what is not done, running or queued (hydra/launcher=NAME says where)",
            "FIGURE": f"{', '.join(names())}; for status and wait also the folder of a submission",
            "KEY=VALUE": help.KEY,
        },
    )


def run(arguments: list[str]) -> None:
    """Raises UserError for a wrong command."""
    commands = {"list": show_jobs, "status": show_states, "wait": wait, "resubmit": resubmit}
    match arguments:
        case [word, *_] if word not in commands:
            raise UserError(f"{word}: is not understood; allowed: {', '.join(commands)}")
        case [word, figure, *overrides]:
            commands[word](figure, overrides)
        case _:
            raise UserError(
                f"{' '.join(arguments) or 'sweeps'}: names no figure; "
                f"allowed: {'|'.join(commands)} FIGURE, of {', '.join(names())}"
            )


def main(arguments: list[str]) -> None:
    command.plain_main(run, page(), arguments)


def show_jobs(name: str, overrides: list[str]) -> None:
    runs = _runs(name, overrides)
    for job in runs:
        print(shlex.join(job.overrides))
    print(summary(load_figure(name, overrides), runs), file=sys.stderr)


def show_states(name: str, overrides: list[str]) -> None:
    runs = _runs(name, overrides)
    states = survey(runs)
    print(*table(runs, states), sep="\n")
    sys.exit(any(state.name in ("failed", "unreadable") for state in states.values()))


def wait(name: str, overrides: list[str]) -> None:
    runs = _runs(name, overrides)
    told = ""
    while True:
        states = survey(runs)
        if (now := counts(states)) != told:
            print(time.strftime("%H:%M:%S"), now, flush=True)
            told = now
        if not any(state.name in ACTIVE for state in states.values()):
            break
        time.sleep(POLL)
    print(*table(runs, states), sep="\n")
    sys.exit(any(state.name != "done" for state in states.values()))


def resubmit(name: str, overrides: list[str]) -> None:
    sys.argv = [sys.argv[0], "--multirun", f"sweep={name}", *overrides]
    train.main()


def table(runs: list[Job], states: dict[Path, State]) -> list[str]:
    """One line a job, and their number in each state."""
    lines = [f"{'state':<11} {'step':>11}  {'ends':<12}  run"]
    for job in runs:
        state = states[job.path]
        step = f"{state.step}/{job.config['steps']}"
        ends = f"{state.ends:%d %b %H:%M}" if state.ends else ""
        note = state.note or (f"by {state.made_by}" if state.made_by else "")
        line = f"{state.name:<11} {step:>11}  {ends:<12}  {job.path.name}  {note}"
        lines.append(printable(line.rstrip()))
    return [*lines, counts(states)]


def counts(states: dict[Path, State]) -> str:
    found = Counter(state.name for state in states.values())
    others = sum(bool(state.made_by) for state in states.values())
    return (
        f"{len(states)} runs: "
        + ", ".join(f"{n} {name}" for name, n in sorted(found.items()))
        + (f"; {others} of those done by other code" if others else "")
    )


def _runs(name: str, overrides: list[str]) -> list[Job]:
    """One job for each run folder."""
    if Path(name, RECORD).exists():
        return read(Path(name)).jobs
    figure = load_figure(name, overrides)
    return list(distinct(jobs(figure, overrides)).values())
