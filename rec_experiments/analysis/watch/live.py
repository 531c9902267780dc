"""Shows runs again and again."""

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live

from rec_experiments.analysis.regime.alarms import Alarm
from rec_experiments.analysis.results.figure_data import composed, places
from rec_experiments.analysis.watch.screen import BOUNDLESS, screen
from rec_experiments.analysis.watch.views import View, Watched

PATIENCE = 30.0  # seconds without an active run until it ends, since a sweep has gaps
Folders = Callable[[], tuple[list[Path], int]]  # the run folders now, and how many are missing


def of_sweep(name: str, places_of_runs: list[Path] | None, overrides: list[str]) -> Folders:
    """The folders of a sweep's runs. Raises UserError for an unknown sweep or wrong override."""
    _, jobs = composed(name, tuple(overrides))
    wanted = [places(path, places_of_runs) for path in dict.fromkeys(job.path for job in jobs)]

    def begun() -> tuple[list[Path], int]:
        found = [[path for path in same if (path / "status.json").exists()] for same in wanted]
        return [path for same in found for path in same], sum(not same for same in found)

    return begun


def watch(
    folders: Folders, alarms: list[Alarm], every: float, once: bool, console: Console
) -> None:
    """Show the runs once, if `once` is true, the console is no terminal or all runs are done.

    Otherwise show them every `every` seconds: wait for a first active run, and end when none has
    been active for PATIENCE seconds.
    """
    watched = Watched(alarms)

    def look() -> tuple[list[View], list[str], int]:
        found, missing = folders()
        return *watched.look(found), missing

    views, left_out, missing = look()
    all_done = bool(views) and not missing and all(view.state == "done" for view in views)
    if once or not console.is_terminal or all_done:
        if not console.is_terminal:
            console.width = BOUNDLESS  # keeps names whole in a file or pipe
        console.print(screen(views, left_out, missing))
        return
    last_active: float | None = None
    with Live(console=console, auto_refresh=False) as live:
        while True:
            if any(view.active for view in views):
                last_active = time.monotonic()
            waiting = last_active is None
            live.update(screen(views, left_out, missing, waiting), refresh=True)
            if last_active is not None and time.monotonic() - last_active >= PATIENCE:
                return
            time.sleep(every)
            views, left_out, missing = look()
