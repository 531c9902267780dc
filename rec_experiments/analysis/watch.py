"""The states of runs as one table, once or again and again, with alarms.

States are those of `sweeps.state.survey`. Text from run folders cannot control the terminal.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rec_experiments.analysis.alarms import active_alarms, package_alarms
from rec_experiments.analysis.early_warning import warning
from rec_experiments.analysis.regime import number
from rec_experiments.analysis.results.statistics import seconds
from rec_experiments.analysis.results.table import content, leave_out
from rec_experiments.common.errors import UserError, printable
from rec_experiments.config.labels import JOINT, run_labels, without_shared
from rec_experiments.runs.display import duration, sparkline
from rec_experiments.runs.run_folder import RunFolder, read_config
from rec_experiments.sweeps.jobs import Job
from rec_experiments.sweeps.state import ACTIVE, State, survey

PATIENCE = 30.0  # seconds without an active run until it ends, since a sweep has gaps
RECENT = 10  # steps to average over for current values
WIDTH = 12  # characters of a curve
BOUNDLESS = 10_000  # characters, wider than any table
HEAD = ("run", "state", "step", "accuracy", "staleness", "clipped", "tokens/s", "left", "note")
ORDER = ("running", "queued", "failed", "unreadable", "interrupted", "outdated", "done", "missing")
TONES = {
    "running": "bold", "failed": "red", "unreadable": "red", "interrupted": "yellow",
    "outdated": "yellow",
}  # fmt: skip
Look = Callable[[], list["Line"]]  # the runs as they are now


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A run in the table. name: its label. path: its folder. steps: of the finished run. rows: its
    rows of the table of runs. alarms: current ones, of a run that is under way."""

    name: str
    path: Path
    state: State
    steps: int
    rows: pandas.DataFrame
    alarms: list[str]


def jobs_in(places: Iterable[Path]) -> list[Job]:
    """The runs among these folders and directly in them, as jobs. Raises UserError for a place
    that is neither a run nor has any."""
    found: dict[Path, Job] = {}
    for place in places:
        inside = [place] if (place / "status.json").exists() else sorted(place.iterdir())
        runs = [folder for folder in inside if (folder / "status.json").exists()]
        if not runs:
            raise UserError(f"{place}: no run there, nor in a folder directly below")
        for folder in runs:
            try:
                config, command = read_config(folder), RunFolder(folder).command()
            except UserError as error:
                leave_out(str(error))
                continue
            found[folder] = Job("", "", command, config, folder)
    return list(found.values())


def lines(jobs: Sequence[Job]) -> list[Line]:
    """The runs with their states, those under way first. Calls SLURM's squeue once, if unfinished
    jobs were submitted; raises UserError if that fails."""
    states = survey(jobs)
    names = _names(jobs)
    found = []
    for job in jobs:
        state, inside = states[job.path], content(job.path)
        if inside.state == "unreadable":  # a state alone does not tell of damaged metrics
            state = State("unreadable", state.step, inside.note)
        rows, steps = inside.rows, int(job.config.get("steps", 0))
        found.append(
            Line(
                name=names[job.path], path=job.path, state=state, steps=steps, rows=rows,
                alarms=_alarms(rows, steps) if state.name == "running" else [],
            )
        )  # fmt: skip
    return sorted(found, key=lambda line: (ORDER.index(line.state.name), line.name))


def _alarms(rows: pandas.DataFrame, steps: int) -> list[str]:
    early = warning(rows, steps)
    return [*([early] if early else []), *map(str, active_alarms(rows, package_alarms()))]


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


def screen(found: Sequence[Line], waiting: bool = False) -> RenderableType:
    """The number of runs in each state, the table, and the alarms. waiting: for a first run that is
    under way."""
    names, shared = without_shared([line.name for line in found])
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for head in HEAD:
        whole = head not in ("run", "note")
        table.add_column(head, no_wrap=whole, justify="right" if head in HEAD[4:8] else "left")
    for line, name in zip(found, names, strict=True):
        state = Text(printable(line.state.name), style=TONES.get(line.state.name, ""))
        note = Text(printable(_note(line)))
        table.add_row(Text(printable(name)), state, *_numbers(line), note)
    return Group(
        Text(count(found)),
        *([Text("no run is active yet; waiting (Ctrl-C ends)", "dim")] if waiting else []),
        *([Text(f"all: {printable(shared)}")] if shared else []),
        *([table] if found else []),
        *(
            Text(f"{printable(line.name)}: a collapse may be coming: {alarm}", "yellow")
            for line in found
            for alarm in line.alarms
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
    by = f"by {line.state.release}" if line.state.release else ""
    return "  ".join(
        filter(None, [line.path.name if line.path.is_dir() else "", line.state.note or by])
    )


def _numbers(line: Line) -> list[str]:
    """The cells from `step` to `left`; "" for what is unknown."""
    accuracy = _measured(line.rows, "eval/accuracy")
    stale, clipped, tokens = (
        _measured(line.rows, key)[-RECENT:]
        for key in ("train/staleness", "train/clip_fraction", "tokens/response")
    )
    recent = line.rows[line.rows["step"] > 0].tail(RECENT)
    spent = float(seconds(recent).sum())
    left = (line.state.ends - datetime.now().astimezone()).total_seconds() if line.state.ends else 0
    return [
        f"{line.state.step}/{line.steps or '?'}",
        f"{curve(accuracy)} {number(accuracy[-1])}" if len(accuracy) else "",
        number(round(float(stale.mean()), 1)) if len(stale) else "",
        f"{number(100 * float(clipped.mean()))} %" if len(clipped) else "",
        f"{float(tokens.sum()) / spent:,.0f}" if len(tokens) and spent > 0 else "",
        duration(left) if left > 0 else "",
    ]


def _measured(rows: pandas.DataFrame, metric: str) -> np.ndarray:
    values = rows[metric].to_numpy() if metric in rows else np.array([])
    return values[np.isfinite(values)]


def curve(values: np.ndarray) -> str:
    """At most WIDTH block characters for values in [0, 1], each the mean of a part of them."""
    parts = np.array_split(values, min(WIDTH, len(values))) if len(values) else []
    return sparkline([float(part.mean()) for part in parts])


def watch(look: Look, every: float, once: bool, console: Console) -> None:
    """Show the runs once, if `once` is true, the console is no terminal or all runs are done.

    Otherwise show them every `every` seconds: wait for a first active run, and end when none has
    been active for PATIENCE seconds.
    """
    found = look()
    all_done = bool(found) and all(line.state.name == "done" for line in found)
    if once or not console.is_terminal or all_done:
        show(found, console)
        return
    last_active: float | None = None
    with Live(console=console, auto_refresh=False) as live:
        while True:
            if any(line.state.name in ACTIVE for line in found):
                last_active = time.monotonic()
            live.update(screen(found, last_active is None), refresh=True)
            if last_active is not None and time.monotonic() - last_active >= PATIENCE:
                return
            time.sleep(every)
            found = look()


def show(found: Sequence[Line], console: Console) -> None:
    """Print the table; in a file or pipe it has its whole width."""
    if not console.is_terminal:
        console.width = BOUNDLESS
    console.print(screen(found))
