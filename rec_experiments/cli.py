"""The command line: `python -m rec_experiments [group=choice] [key=value] …`."""

import contextlib
import difflib
import errno
import functools
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import hydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException
from rich.console import Console

from rec_experiments import distributed, schema
from rec_experiments.display import Reporter, draw_curves, introduce, summarise
from rec_experiments.experiment import Experiment, run_path
from rec_experiments.types import UserError, first_line

if TYPE_CHECKING:
    from rec_experiments.run_folder import RunFolder
    from rec_experiments.tracking import Tracker

USER_ERROR = 2  # exit code for bad input
# Exit codes of a run stopped from outside.
INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
RESUMES = "the same command resumes the run"


def main() -> None:
    """Entry point of `python -m rec_experiments`, alone or as one of the ranks of torchrun."""
    try:
        distributed.join()
    except UserError as error:
        _refuse(error)
    hydra_main("config", run)
    distributed.leave()


def hydra_main(config_name: str, task: Callable[[DictConfig], None]) -> None:
    """Run `task` on the composed configuration; a user's mistake is one line and exit code 2."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors reach us, instead of Hydra's own report
    schema.register()
    start = hydra.main(version_base="1.3", config_path=str(schema.CONF), config_name=config_name)
    composed = False

    @functools.wraps(task)
    def guarded(config: DictConfig) -> None:
        nonlocal composed
        composed = True
        with told_once():  # before Hydra adds its own words
            task(config)

    try:
        if {"-h", "--help"} & set(sys.argv[1:]):
            _help(start(guarded))
        else:
            start(guarded)()
    except (HydraException, OmegaConfBaseException) as error:
        _refuse(error)
    except (TypeError, ValueError) as error:  # what Hydra raises for some overrides, as `sync=3`
        if composed:
            raise
        _refuse(error)
    except KeyboardInterrupt:  # of a sweep, or of a run before its folder is there
        print("interrupted; what is finished is kept, the same command goes on", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


@contextlib.contextmanager
def told_once() -> Iterator[None]:
    """A user's mistake within is told in one line and ends the process with exit code 2; a full
    disk, with 1. Any other error goes on, unless it only follows from that of another rank."""
    try:
        yield
    except (UserError, OmegaConfBaseException) as error:
        _refuse(error)
    except Exception as error:
        if not distributed.current().fails_first():
            sys.exit(1)
        if not (isinstance(error, OSError) and error.errno in DISK_FULL):
            raise
        print(f"error: {error.strerror}; {RESUMES}", file=sys.stderr)
        sys.exit(1)


def _refuse(error: Exception) -> NoReturn:
    if distributed.current().fails_first():  # all ranks make the same mistake; one says so
        print(f"error: {explain(error)}", file=sys.stderr)
    sys.exit(USER_ERROR)


def _help(show: Callable[[], None]) -> None:
    """Hydra's help page without the schemas, which are no choices of a user."""
    page = io.StringIO()
    with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit):
        show()
    print(*[line for line in page.getvalue().splitlines() if line[:6] != "schema"], sep="\n")


def run(config: DictConfig) -> None:
    """One experiment, from its configuration to a finished run folder."""
    from rec_experiments import provenance  # transformers loads only for a real run
    from rec_experiments.prepare import prepare
    from rec_experiments.run_folder import RunFolder
    from rec_experiments.tracking import NoTracking, group_name
    from rec_experiments.train import train

    world = distributed.current()
    console = Console(quiet=not world.leads)
    experiment = schema.build(config, Experiment)
    resolved: dict[str, Any] = OmegaConf.to_container(config, resolve=True, enum_to_str=True)  # type: ignore[assignment]
    path = run_path(resolved)
    folder = RunFolder(path, world)
    folder.check(resolved)
    if folder.status().get("state") == "done":
        console.print(f"finished before: {path}; nothing to do", highlight=False, soft_wrap=True)
        summarise(console, folder.metrics(), path)
        return
    with Reporter(console, experiment.steps) as reporter, contextlib.ExitStack() as ending:
        bench = prepare(experiment, reporter.note, reporter.warm_step, world)
        ending.callback(bench.actor.close)
        folder.start(resolved, provenance.collect())
        for line in introduce(
            experiment, path, (len(bench.train_problems), len(bench.eval_problems))
        ):
            reporter.note(line)
        group = group_name(resolved)
        tracking = experiment.tracking if world.leads else NoTracking()
        tracker = tracking.start(path.name, group, str(path), resolved)

        def on_row(row: dict[str, Any]) -> None:
            reporter.row(row)
            tracker.log(row)

        with early_end_told(folder, tracker, reporter.note):
            if not train(experiment, bench, folder, on_row, reporter.note, told_to_stop()):
                raise Terminated
    if not world.leads:
        return
    picture = path / "curves.png"
    draw_curves(folder.metrics(), f"{experiment.algo.name}, {experiment.sync.describe()}", picture)
    to_do = tracker.finish(picture)
    folder.set_status("done")
    summarise(console, folder.metrics(), path)
    for line in to_do:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


class Terminated(BaseException):
    """SIGTERM has come, and the run has saved its state."""


@contextlib.contextmanager
def early_end_told(
    folder: "RunFolder", tracker: "Tracker", note: Callable[[str], None]
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


def explain(error: BaseException) -> str:
    """One line for the user: the key, the value, what is allowed."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    for part in reversed(chain):
        if isinstance(part, OverrideParseException):
            return f"{part.override}: cannot be read ({first_line(part)})"
        if isinstance(part, MissingConfigException) and part.options:
            group, _, choice = str(part.missing_cfg_file).rpartition("/")
            allowed = sorted(option for option in part.options if option != "schema")
            return f"{group}={choice}: no such choice; allowed: {', '.join(allowed)}"
        if isinstance(part, OmegaConfBaseException) and part.full_key:
            override = re.search(r"Error merging override (.*)", str(error))
            where = override[1] if override else part.full_key
            return f"{where}: {first_line(part)}{_suggestion(part)}"
    return first_line(error)


def _suggestion(error: OmegaConfBaseException) -> str:
    """The keys that stand where a misspelt one was looked for."""
    if not isinstance(error, ConfigKeyError | AttributeError) or error.parent_node is None:
        return ""
    allowed = [str(key) for key in error.parent_node]
    close = difflib.get_close_matches(str(error.key), allowed, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"; {hint}allowed: {', '.join(sorted(allowed))}"
