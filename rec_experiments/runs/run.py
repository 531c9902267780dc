"""One run, from a typed experiment to a finished run folder."""

import contextlib
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from rec_experiments.config.experiment import Experiment
from rec_experiments.config.identity import on_policy_path, run_path
from rec_experiments.determinism import explained
from rec_experiments.distributed import ALONE, World
from rec_experiments.errors import RESUMES, Diverged, UserError
from rec_experiments.runs import provenance
from rec_experiments.runs.display import Reporter, draw_curves, introduce, say, summarise
from rec_experiments.runs.prepare import prepare
from rec_experiments.runs.run_folder import RunFolder
from rec_experiments.runs.signals import on_stop, undisturbed
from rec_experiments.tracking.protocol import Tracker
from rec_experiments.tracking.trackers import NoTracking, group_name, track_finished
from rec_experiments.training.trainer import Trainer


@explained()
def run(experiment: Experiment, world: World = ALONE) -> Path:
    """Train to the end, or say that it was done before. Returns the run folder.

    Every rank of `world` calls it; the first one speaks and writes. Raises UserError for what the
    user can mend, Diverged for a policy that is no longer finite. Exits with 128 + the signal's
    number if it is stopped by Ctrl-C or one of STOPPING.
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
        say(console, f"finished before{by}: {path}; nothing to do{again}")
        summarise(console, folder.metrics(), path, on_policy_rows(config, path))
        if world.leads:
            for line in track_finished(experiment.tracking, path, folder.metrics(), config):
                say(console, line)
        return path
    with Reporter(console, experiment.steps) as reporter, contextlib.ExitStack() as ending:
        trainer = prepare(experiment, reporter.note, reporter.warm_step, world)
        ending.callback(trainer.rollouts.worker.close)
        told: list[int] = []  # signals to stop; from here on none may leave `running` behind
        ending.enter_context(on_stop(told.append))
        folder.start(config, provenance.collect(config), experiment.remake)
        with early_end_told(folder, reporter.note) as afterwards:
            if world.leads:  # what is said is read from files that only the first rank has written
                for line in opening(experiment, folder, trainer, made_by):
                    reporter.note(line)
            tracking = experiment.tracking if world.leads else NoTracking()
            tracker = tracking.start(path.name, group_name(config), str(path), config)
            afterwards.append(lambda: tracker.finish(failed=True))

            def on_row(row: dict[str, Any]) -> None:
                reporter.row(row)
                tracker.log(row)

            if not trainer.train(folder, on_row, reporter.note, lambda: bool(told)):
                raise Stopped(*told[:1] or [signal.SIGTERM])  # none: another rank was told
            to_do = finish(experiment, folder, tracker) if world.leads else []
    if world.leads:
        summarise(console, folder.metrics(), path, on_policy_rows(config, path))
        for line in to_do:
            say(console, line)
    return path


def opening(
    experiment: Experiment, folder: RunFolder, trainer: Trainer, made_by: str
) -> Iterator[str]:
    """What a person should know of a run that begins. made_by: other code that has the folder."""
    problems = len(trainer.rollouts.problems), len(trainer.evaluator.problems)
    yield from introduce(experiment, folder.path, problems)
    if made_by and experiment.remake:
        yield f"made before by {made_by}, and now anew"
    elif begun_by := folder.made_by():
        yield f"begun by {begun_by}; this code goes on with it"
    yield from provenance.remarks(folder.provenance())


def on_policy_rows(config: dict[str, Any], path: Path) -> list[dict[str, Any]] | None:
    """Rows of the finished run beside this one that is the same on-policy; None without one, or
    where its files are damaged: they are no reason for this run to fail."""
    twin = on_policy_path(config, path.parent)
    if twin is None:
        return None
    try:
        return RunFolder(twin).metrics() if RunFolder(twin).is_finished(remake=False) else None
    except UserError:
        return None


def finish(experiment: Experiment, folder: RunFolder, tracker: Tracker) -> list[str]:
    """Draw the curves and close the books. Returns what is left to do for the user."""
    picture = folder.path / "curves.png"
    draw_curves(
        folder.metrics(),
        f"{experiment.algo.name}, {experiment.sync.describe(experiment.updates.per_batch)}",
        picture,
    )
    to_do = tracker.finish(picture)
    folder.set_status("done")
    return to_do


class Stopped(BaseException):
    """A signal of STOPPING has come, and the run has saved its state."""

    def __init__(self, number: int):
        self.number = signal.Signals(number)


@contextlib.contextmanager
def early_end_told(
    folder: RunFolder, note: Callable[[str], None]
) -> Iterator[list[Callable[[], object]]]:
    """Whatever ends the run within stands in its status afterwards.

    What is put on the list is done after that, if the end is early.
    """
    world = folder.world
    afterwards: list[Callable[[], object]] = []
    try:
        yield afterwards
    except (KeyboardInterrupt, Stopped) as end:
        number = end.number if isinstance(end, Stopped) else signal.SIGINT
        with undisturbed():
            reason = f"{number.name} after step {folder.last_step()}; {RESUMES}"
            if world.leads:
                folder.set_status("interrupted", reason=reason)
        for act in afterwards:
            act()
        note(f"interrupted: {reason}")
        sys.exit(128 + number)
    except BaseException as error:
        told = plainly(error, folder.last_step())
        with undisturbed():
            if world.fails_first():
                why = {"reason": reason_of(told), "traceback": traceback.format_exc()}
                with contextlib.suppress(OSError):  # a full disk; what filled it is the news
                    folder.set_status("failed", **why)
        for act in afterwards:
            act()
        if told is error:
            raise
        raise told from error


def plainly(error: BaseException, step: int) -> BaseException:
    """The error as a user is told of it. step: the last one that a row was written of."""
    if isinstance(error, FloatingPointError):
        return Diverged(
            f"the policy is no longer finite at step {step + 1} ({error}); a lower "
            "optimizer.learning_rate may keep it so"
        )
    return error


def reason_of(error: BaseException) -> str:
    """Why a run failed, as its status has it."""
    plain = isinstance(error, UserError | Diverged)
    return str(error) if plain else f"{type(error).__name__}: {error}"
