"""One run, from a typed experiment to a finished run folder."""

import contextlib
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rec_experiments.common.determinism import explained
from rec_experiments.common.distributed import ALONE, World, digest_of
from rec_experiments.common.errors import RESUMES, Diverged, UserError, first_line
from rec_experiments.config.experiment import Experiment
from rec_experiments.config.identity import RELEASE, run_path
from rec_experiments.config.labels import run_label, tracked_name
from rec_experiments.policy import lora
from rec_experiments.runs import provenance
from rec_experiments.runs.display import (
    Reporter,
    Screen,
    draw_curves,
    introduce,
    report_finished,
    say,
    summarise,
)
from rec_experiments.runs.learning_signal import too_high, watch_first_batches
from rec_experiments.runs.prepare import prepare
from rec_experiments.runs.run_folder import CONFIG, RunFolder
from rec_experiments.runs.signals import ignore_interrupts, on_stop
from rec_experiments.runs.trackers import NoTracking, finish_tracking
from rec_experiments.training.policies import Teacher
from rec_experiments.training.trainer import Trainer

PICTURE = "curves.png"


@explained()
def run(experiment: Experiment, world: World = ALONE) -> Path:
    """Train to the end, or report that the run is already finished. Returns the run folder.

    Every rank of `world` calls it; only the first prints and writes. Raises UserError for a user's
    mistake and Diverged if the policy is no longer finite. Exits with 128 + the signal's number if
    Ctrl-C or a signal of STOPPING interrupts it.
    """
    console = Screen(quiet=not world.leads)
    config = experiment.config()
    path = run_path(config)
    folder = RunFolder(path, world)
    if report_finished(experiment, world):
        return path
    replaced = folder.other_releases() if experiment.remake else ""
    with Reporter(console, experiment.steps) as reporter, contextlib.ExitStack() as stack:
        trainer = prepare(experiment, reporter.note, reporter.warm_step, world)
        stack.callback(trainer.rollouts.worker.close)
        signals: list[int] = []  # signals to stop that have arrived
        stack.enter_context(on_stop(signals.append))  # before the status becomes `running`
        stack.callback(folder.unlock)
        now = provenance.collect(experiment.ranks, digests_of(trainer))
        folder.start(config, now, experiment.remake)
        with recording_early_end(folder, reporter.note) as cleanups:
            if world.leads:  # the messages are read from files that only the first rank writes
                for line in start_messages(experiment, folder, trainer, replaced):
                    reporter.note(line)
            tracking = experiment.tracking if world.leads else NoTracking()
            name = tracked_name(config, folder.command(), path) if world.leads else ""
            tracker = tracking.start(name, path, config)
            cleanups.append(lambda: tracker.finish(failed=True))
            watch = watch_first_batches(experiment, folder.last_sample, reporter.note)

            def log_row(row: dict[str, Any]) -> None:
                reporter.row(row)
                tracker.log(row)
                if world.leads:
                    watch(row)

            if not trainer.train(folder, log_row, reporter.note, lambda: bool(signals)):
                raise Stopped(*signals[:1] or [signal.SIGTERM])  # none: another rank received it
            if world.leads:
                folder.check_rows(experiment.steps)
                reporter.bar.stop()
                summarise(console, folder.metrics(), path)
                picture = draw(config, folder, reporter.note)
                next_steps = finish_tracking(tracking, tracker, path, picture)
                folder.set_status("done")
                for line in next_steps:
                    say(console, line)
    return path


def digests_of(trainer: Trainer) -> dict[str, str | None]:
    """Digests of what a resumed run must find unchanged, by the keys of `provenance.UNCHANGED`: its
    problems, and weights that checkpoints do not hold, None where there are none."""
    base = lora.Base.of(trainer.model)
    teaches = isinstance(trainer.policies.reference, Teacher)
    teacher = trainer.policies.models["reference"].state_dict() if teaches else None
    return {
        "data": provenance.data_digest(trainer.rollouts.problems, trainer.evaluator.problems),
        "base": digest_of(base.weights) if base else None,
        "teacher": digest_of(teacher) if teacher else None,
    }


def start_messages(
    experiment: Experiment, folder: RunFolder, trainer: Trainer, replaced: str
) -> Iterator[str]:
    """What the user should know about a run that starts. replaced: the releases that made the run
    that it repeats, or ""."""
    problems = len(trainer.rollouts.problems), len(trainer.evaluator.problems)
    yield from introduce(experiment, folder.command(), folder.path, problems)
    if replaced:
        yield f"repeats a run of {replaced} with release {RELEASE}"
    elif others := folder.other_releases():
        yield f"begun by {others}, continued by release {RELEASE}"
    yield from provenance.remarks(folder.provenance())
    if remark := too_high(experiment, sum(each.numel() for each in trainer.model.parameters())):
        yield remark


def draw(config: dict[str, Any], folder: RunFolder, note: Callable[[str], None]) -> Path | None:
    """Draw the curves of a finished run. Returns their file, or None if that failed: the numbers
    are there, and the picture can be drawn again."""
    picture = folder.path / PICTURE
    try:
        draw_curves(folder.metrics(), run_label(config, folder.command()), picture)
    except Exception as error:  # of matplotlib
        note(f"{picture}: cannot be drawn ({type(error).__name__}: {first_line(error)})")
        return None
    return picture


class Stopped(BaseException):
    """A signal of STOPPING arrived, and the run has saved its state."""

    def __init__(self, number: int):
        self.number = signal.Signals(number)


@contextlib.contextmanager
def recording_early_end(
    folder: RunFolder, note: Callable[[str], None]
) -> Iterator[list[Callable[[], object]]]:
    """Record in the status whatever ends the run inside the block.

    The block may append functions to the yielded list; they are called after an early end.
    """
    world = folder.world
    cleanups: list[Callable[[], object]] = []
    try:
        yield cleanups
    except (KeyboardInterrupt, Stopped) as end:
        number = end.number if isinstance(end, Stopped) else signal.SIGINT
        with ignore_interrupts():
            last, saved = folder.last_step(), folder.saved_step()
            where = f" from step {saved}, its newest checkpoint" if saved < last else ""
            reason = f"{number.name} after step {last}; {RESUMES}{where}"
            if world.leads:
                folder.set_status("interrupted", reason=reason)
        for cleanup in cleanups:
            cleanup()
        note(f"interrupted: {reason}")
        sys.exit(128 + number)
    except BaseException as error:
        shown = as_user_sees(error, folder.last_step(), folder.path)
        with ignore_interrupts():
            if world.fails_first():
                details = {"reason": reason_of(shown), "traceback": traceback.format_exc()}
                with contextlib.suppress(OSError, UserError):  # no space or place: report `error`
                    folder.set_status("failed", **details)
        for cleanup in cleanups:
            cleanup()
        if shown is error:
            raise
        raise shown from error


def as_user_sees(error: BaseException, step: int, path: Path) -> BaseException:
    """The error to report. step: the last step in metrics.jsonl. path: the run folder."""
    if isinstance(error, FloatingPointError):
        return Diverged(
            f"the policy is no longer finite at step {step + 1} ({error}); a lower "
            "optimizer.learning_rate may help"
        )
    if isinstance(error, FileNotFoundError) and not (path / CONFIG).exists():
        return UserError(f"run folder {path}: was removed or replaced while the run wrote to it")
    if isinstance(error, SystemExit):  # whose code may be 0
        return RuntimeError(f"something in the run called sys.exit({error.code!r})")
    return error


def reason_of(error: BaseException) -> str:
    """Why a run failed, in one line for its status."""
    one_line = isinstance(error, UserError | Diverged)
    return str(error) if one_line else f"{type(error).__name__}: {error}"
