"""The states of runs as one table, once or again and again, with alarms.

States are those of `sweeps.state.survey`. Text from run folders cannot control the terminal.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rec_experiments.analysis.alarms import ALARMS, warning
from rec_experiments.analysis.regime import number
from rec_experiments.analysis.results.statistics import ACCURACY, seconds
from rec_experiments.analysis.results.table import configurations, content, run_folders
from rec_experiments.common.errors import UserError, printable
from rec_experiments.config.labels import JOINT, run_labels, without_shared
from rec_experiments.runs.display import duration, sparkline
from rec_experiments.sweeps.jobs import Job
from rec_experiments.sweeps.state import State, survey

EVERY = 2.0  # seconds between two refreshes
RECENT = 10  # steps to average over for current values
WIDTH = 12  # characters of a curve
BOUNDLESS = 10_000  # characters, wider than any table
HEAD = ("run", "state", "step", "accuracy", "staleness", "clipped", "tokens/s", "left", "note")
ORDER = ("running", "queued", "failed", "unreadable", "interrupted", "outdated", "done", "missing")
TONES = {
    "running": "bold", "failed": "red", "unreadable": "red", "interrupted": "yellow",
    "outdated": "yellow",
}  # fmt: skip


class Line(NamedTuple):
    """A run in the table. name: its label. rows: its rows of the table of runs."""

    name: str
    job: Job
    state: State
    rows: pandas.DataFrame


def jobs_in(places: Iterable[Path]) -> list[Job]:
    """The runs among these folders and directly in them, as jobs. Raises UserError for a place
    that is neither a run nor has any."""
    folders: dict[Path, None] = {}
    for place in places:
        runs = [place] if (place / "status.json").exists() else run_folders(place)
        if not runs:
            raise UserError(f"{place}: no run there, nor in a folder directly below")
        folders |= dict.fromkeys(runs)
    return [
        Job("", "", [*command], config, folder)
        for folder, (config, command) in configurations(folders).items()
    ]


def lines(jobs: Sequence[Job]) -> list[Line]:
    """The runs with their states, those under way first. Calls SLURM's squeue once, if unfinished
    jobs were submitted; raises UserError if that fails."""
    states, names = survey(jobs), _names(jobs)
    found = []
    for job in jobs:
        state, inside = states[job.path], content(job.path)
        if inside.state == "unreadable":  # a state alone does not tell of damaged metrics
            state = State("unreadable", state.step, inside.note)
        found.append(Line(names[job.path], job, state, inside.rows))
    return sorted(found, key=lambda line: (ORDER.index(line.state.name), line.name))


def _names(jobs: Sequence[Job]) -> dict[Path, str]:
    """The labels of runs: arm, column and seed in a sweep, and otherwise what tells them apart."""
    others = [job for job in jobs if not job.label]
    labels = run_labels([(job.config, job.overrides) for job in others])
    found = dict(zip((job.path for job in others), labels, strict=True))
    for job in jobs:
        if job.label:
            seeds = [word for word in job.overrides if word.startswith("seed=")] or ["seed=0"]
            found[job.path] = JOINT.join([job.label, job.heading, seeds[-1].replace("=", " ")])
    return found


def _alarms(line: Line) -> list[str]:
    """Those of a run that is under way."""
    if line.state.name != "running":
        return []
    found = [each.message(line.rows) for each in ALARMS]
    return [*filter(None, [warning(line.rows, line.job.config.get("steps", 0)), *found])]


def screen(found: Sequence[Line]) -> RenderableType:
    """The number of runs in each state, the table, and the alarms."""
    names, shared = without_shared([line.name for line in found])
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for head in HEAD:
        whole = head not in ("run", "note")
        table.add_column(head, no_wrap=whole, justify="right" if head in HEAD[4:8] else "left")
    for line, name in zip(found, names, strict=True):
        cells = map(Text, map(printable, (name, line.state.name, *_numbers(line), _note(line))))
        table.add_row(*cells, style=TONES.get(line.state.name))
    return Group(
        Text(count(found)),
        *([Text(f"all: {printable(shared)}")] if shared else []),
        *([table] if found else []),
        *(
            Text(f"{printable(line.name)}: a collapse may be coming: {alarm}", "yellow")
            for line in found
            for alarm in _alarms(line)
        ),
    )


def count(found: Sequence[Line]) -> str:
    """As in `3 runs: 1 running, 2 done; 1 of those done by another release`."""
    number_of = Counter(line.state.name for line in found)
    others = sum(bool(line.state.release) for line in found)
    return (
        f"{len(found)} run{'' if len(found) == 1 else 's'}"
        + (": " if found else "")
        + ", ".join(f"{number_of[name]} {name}" for name in ORDER if number_of[name])
        + (f"; {others} of those done by another release" if others else "")
    )


def _note(line: Line) -> str:
    """The folder, and the reason for the state."""
    state, path = line.state, line.job.path
    by = f"by {state.release}" if state.release else ""
    return "  ".join(filter(None, [path.name if path.is_dir() else "", state.note or by]))


def _numbers(line: Line) -> list[str]:
    """The cells from `step` to `left`; "" for what is unknown."""
    accuracy = _measured(line.rows, ACCURACY)
    stale, clipped, tokens = (
        _measured(line.rows, key)[-RECENT:]
        for key in ("train/staleness", "train/clip_fraction", "tokens/response")
    )
    recent = seconds(line.rows[line.rows["step"] > 0].tail(RECENT))
    spent, step = float(recent.sum()), line.state.step
    steps = line.job.config.get("steps", step)
    left = recent.mean() * (steps - step) if line.state.name == "running" else 0
    return [
        f"{step}/{line.job.config.get('steps', '?')}",
        f"{curve(accuracy)} {number(accuracy[-1])}" if len(accuracy) else "",
        number(round(float(stale.mean()), 1)) if len(stale) else "",
        f"{number(100 * float(clipped.mean()))} %" if len(clipped) else "",
        f"{float(tokens.sum()) / spent:,.0f}" if len(tokens) and spent > 0 else "",
        duration(left) if 0 < left < np.inf else "",
    ]


def _measured(rows: pandas.DataFrame, metric: str) -> np.ndarray:
    values = rows[metric].to_numpy() if metric in rows else np.array([])
    return values[np.isfinite(values)]


def curve(values: np.ndarray) -> str:
    """At most WIDTH block characters for values in [0, 1], each the mean of a part of them."""
    parts = np.array_split(values, min(WIDTH, len(values))) if len(values) else []
    return sparkline([float(part.mean()) for part in parts])


def watch(look: Callable[[], list[Line]], once: bool, console: Console) -> None:
    """Show the runs: once, if `once` is true or the console is no terminal; otherwise every
    EVERY seconds until all are done."""
    found = look()
    if once or not console.is_terminal:
        show(found, console)
        return
    with Live(console=console, auto_refresh=False) as live:
        live.update(screen(found), refresh=True)
        while not all(line.state.name == "done" for line in found):
            time.sleep(EVERY)
            found = look()
            live.update(screen(found), refresh=True)


def show(found: Sequence[Line], console: Console) -> None:
    """Print the table; in a file or pipe it has its whole width."""
    if not console.is_terminal:
        console.width = BOUNDLESS
    console.print(screen(found))
