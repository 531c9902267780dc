"""How a process reports errors, and what the command line of a run or a sweep starts."""

import contextlib
import difflib
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

from rec_experiments.analysis.figures import COMPUTED
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
from rec_experiments.config.composition import composing, explain

SWEEP = ("-m", "--multirun")
SHOWING = ("-c", "--cfg", "-i", "--info", "--hydra-help")  # answered by Hydra
OF_CFG = ("-p", "--package", "--resolve")
KNOWN = ("--help", "--version", *SWEEP, *SHOWING, *OF_CFG)
OPTIONS = [name for name in KNOWN if name.startswith("--")]


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


def execute(words: list[str], task: Callable[[DictConfig], None]) -> None:
    """Run `task` on the configuration that these words compose, or on each job of a sweep (-m).
    Hydra answers those that only show a configuration."""
    home = os.path.expanduser("~")  # a shell leaves KEY=~/NAME as it is; "~" without a home folder
    words = [re.sub(r"=~(?=/|$)", f"={home}", word) for word in words]
    with one_line_errors():
        check_options(words)
        options = {word.partition("=")[0] for word in words if word.startswith("-")}
        if options.intersection(SHOWING):
            show(words)
            return
        for option in options.intersection(OF_CFG):
            raise UserError(f"{option}: goes with --cfg, as in --cfg job")
        check_sweep(words, bool(options))
        if options:
            from rec_experiments.sweeps.launch import launch  # imports submitit

            def reporting(config: DictConfig) -> None:
                with one_line_errors():
                    task(config)

            try:
                launch([word for word in words if word not in SWEEP], reporting)
            except KeyboardInterrupt:
                print(GOES_ON, file=sys.stderr)
                sys.exit(128 + signal.SIGINT)
        else:
            with composing() as compose:
                config = compose("config", words)
            task(config)


def show(words: list[str]) -> None:
    """Let Hydra print the configuration that these words compose."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that Hydra passes errors on
    sys.argv[1:] = [word for word in words if word not in SWEEP]
    schema.register()
    start = hydra.main(version_base="1.3", config_path=str(schema.CONF), config_name="config")
    try:
        start(lambda config: None)()
    except (TypeError, ValueError) as error:  # Hydra's answer to some overrides, as `sync=3`
        raise UserError(explain(error)) from error


def check_sweep(words: list[str], sweeps: bool) -> None:
    """Raise UserError for a figure that needs no sweep, and for a sweep or several values of a key
    without -m: one word must not start dozens of runs."""
    figure = next((word for word in words if word.startswith("sweep=")), None)
    if figure and (name := figure.removeprefix("sweep=")) in COMPUTED:
        raise UserError(f"{figure}: this figure is computed without runs: {PROGRAM} figures {name}")
    if figure and not sweeps:
        raise UserError(
            f"{figure}: starts all runs of a figure, so it needs -m; "
            f"{PROGRAM} sweeps list {figure.removeprefix('sweep=')} lists them"
        )
    for word in () if sweeps else words:
        key, equals, values = word.partition("=")
        if equals and re.fullmatch(r"[^\[\](){}'\"$]+,[^\[\](){}'\"$]+", values):
            raise UserError(
                f"{word}: several values make several runs, which needs -m: {PROGRAM} -m {word}; "
                f"a list is written {key}=[{values}]"
            )


def check_options(words: list[str]) -> None:
    """Raise UserError for an option that does not exist."""
    for word in words:
        name, equals, value = word.partition("=")
        if not word.startswith("-") or name in KNOWN:
            continue
        close = difflib.get_close_matches(name, OPTIONS, n=1)
        meant = f"{name.lstrip('-')}={value}" if equals else "".join(close)
        hint = f"did you mean {meant}? " if meant else ""
        raise UserError(f"{word}: unknown option; {hint}allowed: {', '.join(OPTIONS)}")
