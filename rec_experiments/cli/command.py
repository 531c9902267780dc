"""How a process reports errors, and how it hands a command line to Hydra."""

import contextlib
import difflib
import functools
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rec_experiments.analysis.figures.computed import COMPUTED
from rec_experiments.cli.parser import PROGRAM
from rec_experiments.common import distributed
from rec_experiments.common.errors import (
    DISK_FULL,
    GOES_ON,
    RESUMES,
    USER_ERROR,
    Diverged,
    UserError,
    interrupted,
    mistake,
    printable,
)
from rec_experiments.config import schema
from rec_experiments.config.composition import explain

# Hydra's options (hydra.cc, "Command line flags"). It answers an unknown one with a page of usage.
OPTIONS = (
    "--help", "--hydra-help", "--version", "--resolve", "--multirun", "--run", "--cfg", "--package",
    "--info", "--config-path", "--config-name", "--config-dir", "--shell-completion",
    "--experimental-rerun",
)  # fmt: skip
SHORT_OPTIONS = ("-h", "-m", "-r", "-c", "-p", "-i", "-cp", "-cn", "-cd", "-sc")


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Report a user's mistake in one line and exit with code 2; a full disk or a diverged run with
    code 1. Other errors pass. If several ranks fail, only the first one speaks."""
    try:
        yield
    except (UserError, HydraException, OmegaConfBaseException, YAMLError) as error:
        if interrupted(error):
            raise KeyboardInterrupt from None
        _exit(USER_ERROR, str(error) if isinstance(error, UserError) else explain(error))
    except Diverged as error:
        _exit(1, str(error))
    except Exception as error:
        if found := mistake(error):
            _exit(USER_ERROR, str(found))
        if not distributed.current().fails_first():
            sys.exit(1)
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            _exit(1, f"{error.strerror}; {RESUMES}")
        raise


def _exit(code: int, message: str) -> None:
    if distributed.current().fails_first():
        print(f"error: {printable(message)}", file=sys.stderr)
    sys.exit(code)


def hydra_main(config_name: str, task: Callable[[DictConfig], None]) -> None:
    """Run `task` on the configuration that sys.argv composes, or on each job of a sweep."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that Hydra passes errors on
    start = hydra.main(version_base="1.3", config_path=str(schema.CONF), config_name=config_name)
    composed = False

    @functools.wraps(task)
    def reporting(config: DictConfig) -> None:
        nonlocal composed
        composed = True
        with one_line_errors():  # here, because Hydra adds a line to an error that leaves the task
            task(config)

    # A shell leaves the ~ of KEY=~/NAME as it is, and Hydra cannot read it.
    home = os.path.expanduser("~")  # "~" itself without a home folder
    sys.argv[1:] = words = [re.sub(r"=~(?=/|$)", f"={home}", word) for word in sys.argv[1:]]
    with one_line_errors():
        check_options(words)
        check_sweep(words)
        schema.register()
        try:
            start(reporting)()
        except (TypeError, ValueError) as error:  # Hydra's answer to some overrides, as `sync=3`
            if composed:
                raise
            raise UserError(explain(error, words)) from error
        except KeyboardInterrupt:
            if {"-m", "--multirun"}.isdisjoint(words):
                raise
            print(GOES_ON, file=sys.stderr)
            sys.exit(128 + signal.SIGINT)


def check_sweep(words: list[str]) -> None:
    """Raise UserError for a figure that needs no sweep, and for a sweep or several values of a key
    without -m: one word must not start dozens of runs."""
    single = {"-m", "--multirun", "-c", "--cfg", "-i", "--info"}.isdisjoint(words)
    figure = next((word for word in words if word.startswith("sweep=")), None)
    if figure and (name := figure.removeprefix("sweep=")) in COMPUTED:
        raise UserError(f"{figure}: this figure is computed without runs: {PROGRAM} figures {name}")
    if figure and single:
        raise UserError(
            f"{figure}: starts all runs of a figure, so it needs -m; "
            f"{PROGRAM} sweeps list {figure.removeprefix('sweep=')} lists them"
        )
    for word in words if single else ():
        key, equals, values = word.partition("=")
        if equals and re.fullmatch(r"[^\[\](){}'\"$]+,[^\[\](){}'\"$]+", values):
            raise UserError(
                f"{word}: several values make several runs, which needs -m: {PROGRAM} -m {word}; "
                f"a list is written {key}=[{values}]"
            )


def check_options(words: list[str]) -> None:
    """Raise UserError for an option that Hydra does not have."""
    for word in words:
        name, equals, value = word.partition("=")
        if not word.startswith("-") or name in (*OPTIONS, *SHORT_OPTIONS):
            continue
        close = difflib.get_close_matches(name, OPTIONS, n=1)
        meant = f"{name.lstrip('-')}={value}" if equals else "".join(close)
        hint = f"did you mean {meant}? " if meant else ""
        raise UserError(f"{word}: unknown option; {hint}allowed: {', '.join(OPTIONS)}")
