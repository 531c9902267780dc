"""One run, from a typed experiment to a finished run folder."""

import contextlib
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from rec_experiments.determinism import explained
from rec_experiments.display import Reporter, draw_curves, introduce, summarise
from rec_experiments.distributed import ALONE, World
from rec_experiments.errors import RESUMES
from rec_experiments.experiment import Experiment
from rec_experiments.prepare import prepare
from rec_experiments.records import provenance
from rec_experiments.records.identity import run_path
from rec_experiments.records.run_folder import RunFolder
from rec_experiments.records.tracking import NoTracking, group_name
from rec_experiments.slots import Tracker
from rec_experiments.training.loop import train


@explained()
def run(experiment: Experiment, world: World = ALONE) -> Path:
    """Train to the end, or say that it was done before. Returns the run folder.

    Every rank of `world` calls it; the first one speaks and writes. Raises UserError for what the
    user can mend, before anything is written. Exits with 128 + the signal's number if it is stopped
    by Ctrl-C or SIGTERM.
    """
    console = Console(quiet=not world.leads)
    config = experiment.config()
    path = run_path(config)
    folder = RunFolder(path, world)
    folder.check(config)
    made_by = folder.made_by()
    if folder.is_finished(experiment.remake):
        by = f", by {made_by}" if made_by else ""
        again = "; remake=true makes it again" if made_by else ""
        console.print(
            f"finished before{by}: {path}; nothing to do{again}",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
        summarise(console, folder.metrics(), path)
        return path
    with Reporter(console, experiment.steps) as reporter, contextlib.ExitStack() as ending:
        context = prepare(experiment, reporter.note, reporter.warm_step, world)
        ending.callback(context.worker.close)
        folder.start(config, provenance.collect(config), experiment.remake)
        for line in introduce(
            experiment, path, (len(context.train_problems), len(context.eval_problems))
        ):
            reporter.note(line)
        if made_by and experiment.remake:
            reporter.note(f"made before by {made_by}, and now anew")
        elif begun_by := folder.made_by():
            reporter.note(f"begun by {begun_by}; this code goes on with it")
        tracking = experiment.tracking if world.leads else NoTracking()
        tracker = tracking.start(path.name, group_name(config), str(path), config)

        def on_row(row: dict[str, Any]) -> None:
            reporter.row(row)
            tracker.log(row)

        with early_end_told(folder, tracker, reporter.note):
            if not train(experiment, context, folder, on_row, reporter.note, told_to_stop()):
                raise Terminated
    if world.leads:
        finish(experiment, folder, tracker, console)
    return path


def finish(experiment: Experiment, folder: RunFolder, tracker: Tracker, console: Console) -> None:
    """Draw the curves, close the books, and tell the person what came out."""
    picture, rows = folder.path / "curves.png", folder.metrics()
    draw_curves(
        rows,
        f"{experiment.algo.name}, {experiment.sync.describe(experiment.updates.per_batch)}",
        picture,
    )
    to_do = tracker.finish(picture)
    folder.set_status("done")
    summarise(console, rows, folder.path)
    for line in to_do:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


class Terminated(BaseException):
    """SIGTERM has come, and the run has saved its state."""


@contextlib.contextmanager
def early_end_told(
    folder: RunFolder, tracker: Tracker, note: Callable[[str], None]
) -> Iterator[None]:
    """Whatever ends the run within stands in its status afterwards, and its tracker knows."""
    world = folder.world
    try:
        yield
    except (KeyboardInterrupt, Terminated) as end:
        number = signal.SIGTERM if isinstance(end, Terminated) else signal.SIGINT
        reason = f"{number.name} after step {folder.last_step()}; {RESUMES}"
        if world.leads:
            folder.set_status("interrupted", reason=reason)
        tracker.finish(failed=True)
        note(f"interrupted: {reason}")
        sys.exit(128 + number)
    except BaseException as error:
        if world.fails_first():
            reason = f"{type(error).__name__}: {error}"
            with contextlib.suppress(OSError):  # a full disk; what filled it is the news
                folder.set_status("failed", reason=reason, traceback=traceback.format_exc())
        tracker.finish(failed=True)
        raise


def told_to_stop() -> Callable[[], bool]:
    """From now on SIGTERM does not kill the process; returns what tells whether it has come."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    return lambda: bool(told)
