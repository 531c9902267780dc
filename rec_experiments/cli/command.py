"""What all commands share: how they start, how they read their arguments, how they end.

A command that composes a run starts through `hydra_main`, any other through `plain_main`.
"""

import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rec_experiments import distributed
from rec_experiments.cli import streams
from rec_experiments.cli.help import Page, page_of_a_run
from rec_experiments.cli.pages import HELP
from rec_experiments.config import schema
from rec_experiments.config.composition import explain
from rec_experiments.errors import (
    DISK_FULL,
    GOES_ON,
    RESUMES,
    USER_ERROR,
    Diverged,
    UserError,
    mistake,
    printable,
)


def hydra_main(
    config_name: str, task: Callable[[DictConfig], None], page: Page | None = None
) -> None:
    """Run `task` on the composed configuration; a user's mistake is one line and exit code 2.

    page: what --help prints, in place of all that a run can be given.
    """
    streams.make_unfailing()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # let errors reach us, instead of Hydra's own report
    start = hydra.main(version_base="1.3", config_path=str(schema.CONF), config_name=config_name)
    composed = False

    @functools.wraps(task)
    def guarded(config: DictConfig) -> None:
        nonlocal composed
        composed = True
        with told_once():  # before Hydra adds its own words
            task(config)

    try:
        schema.register()
        if {*HELP} & {*sys.argv[1:]}:
            overrides = [word for word in sys.argv[1:] if word[:1] != "-"]
            print(page or page_of_a_run(config_name, overrides))
        else:
            _refuse_unknown_options(sys.argv[1:])
            start(guarded)()
    except (UserError, HydraException, OmegaConfBaseException, YAMLError) as error:
        refuse(error)
    except (TypeError, ValueError) as error:  # what Hydra raises for some overrides, as `sync=3`
        if composed:
            raise
        refuse(error)
    except (OSError, ImportError) as error:
        if found := mistake(error):
            refuse(found)
        raise
    except KeyboardInterrupt:  # of a sweep, or of a run before its folder is there
        print(GOES_ON, file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


def _refuse_unknown_options(words: list[str]) -> None:
    """Raise UserError for an option that Hydra does not have, or one that it cannot read: its own
    answer is its whole usage."""
    parser = get_args_parser()
    options = [each for action in parser._actions for each in action.option_strings]
    allowed = f"allowed: {', '.join(each for each in options if each.startswith('--'))}"

    def told(message: str) -> NoReturn:
        raise UserError(f"{message}; {allowed}")

    parser.error = told  # type: ignore[method-assign]
    for word in parser.parse_known_args(words)[1]:
        hint = f"did you mean {word.lstrip('-')}? " if "=" in word else ""
        raise UserError(f"{word}: is no option; {hint}{allowed}")


def _refuse_options(words: list[str]) -> None:
    """Raise UserError for an option of a command, which has none but --help."""
    for word in words:
        if word.startswith("-"):
            raise UserError(f"{word}: is no option; allowed: {', '.join(HELP)}, KEY=VALUE")


@contextlib.contextmanager
def told_once() -> Iterator[None]:
    """A user's mistake within is told in one line and ends the process with exit code 2; a full
    disk, and a run that diverged, with 1. Any other error goes on, unless it only follows from that
    of another rank."""
    streams.make_unfailing()
    try:
        yield
    except (UserError, OmegaConfBaseException) as error:
        refuse(error)
    except Exception as error:
        if found := mistake(error):
            refuse(found)
        if not distributed.current().fails_first():
            sys.exit(1)
        if isinstance(error, Diverged):
            print(f"error: {printable(str(error))}", file=sys.stderr)
            sys.exit(1)
        if not (isinstance(error, OSError) and error.errno in DISK_FULL):
            raise
        print(f"error: {error.strerror}; {RESUMES}", file=sys.stderr)
        sys.exit(1)


def refuse(error: Exception) -> NoReturn:
    if distributed.current().fails_first():  # all ranks make the same mistake; one says so
        print(f"error: {printable(explain(error))}", file=sys.stderr)
    sys.exit(USER_ERROR)


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandLine:
    """words: arguments without `=`. values: of the command's own keys. overrides: the others."""

    words: list[str]
    values: dict[str, str]
    overrides: list[str]

    @property
    def runs(self) -> list[Path] | None:
        """The folders of runs=FOLDER,…, if given. Raises UserError for one that does not exist."""
        if "runs" not in self.values:
            return None
        names = self.values["runs"].split(",")
        for name in names:
            if not name or not Path(name).is_dir():
                raise UserError(f"runs={name}: no such folder")
        return [Path(name) for name in names]

    def refuse_words(self, allowed: str) -> None:
        """Raise UserError for the first word of a command that takes none."""
        for word in self.words:
            raise UserError(f"{word}: is not understood; allowed: {allowed}")


def parse(arguments: list[str], *keys: str) -> CommandLine:
    """The arguments of a command that has `keys` of its own; the last value of a key counts.

    Raises UserError for a value without a key.
    """
    for argument in arguments:
        if argument.startswith("="):
            raise UserError(f"{argument}: names no key; KEY=VALUE is allowed")
    pairs = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    return CommandLine(
        words=[argument for argument in arguments if "=" not in argument],
        values={key: value for key, value in pairs.items() if key in keys},
        overrides=[f"{key}={value}" for key, value in pairs.items() if key not in keys],
    )


def whole_number(line: CommandLine, key: str) -> int | None:
    """The value of a command's own key, None if it is not given. Raises UserError for no number."""
    text = line.values.get(key)
    if text is not None and not text.isdecimal():
        raise UserError(f"{key}={text}: must be a whole number")
    return None if text is None else int(text)


def plain_main(command: Callable[[list[str]], None], page: Page, arguments: list[str]) -> None:
    """Run a command or print its page; a user's mistake is one line and exit code 2."""
    try:
        with streams.unfailing():
            if {*HELP} & {*arguments}:
                print(page)
            else:
                _refuse_options(arguments)
                command(arguments)
    except UserError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(USER_ERROR)


def out_file(line: CommandLine, *suffixes: str) -> Path | None:
    """The file of out=FILE, None if it is not given. Raises UserError for another end of its name:
    what is written must not take the place of something else."""
    text = line.values.get("out")
    if text is not None and not text.endswith(suffixes):
        raise UserError(f"out={text}: the name must end in {' or '.join(suffixes)}")
    return None if text is None else Path(text)


@contextlib.contextmanager
def writing(out: Path) -> Iterator[None]:
    """Within, a place that cannot be written to is a UserError that names it."""
    try:
        yield
    except OSError as error:
        raise UserError(f"out={out}: cannot be written ({error.strerror})") from error
