"""What the command lines of figures, claims and report share: words, key=value, and mistakes.

A key that a command does not know itself chooses runs, as on the command line of a sweep.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rec_experiments.cli import USER_ERROR
from rec_experiments.types import UserError


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
        folders = [Path(folder) for folder in self.values["runs"].split(",")]
        for folder in folders:
            if not folder.is_dir():
                raise UserError(f"runs={folder}: no such folder")
        return folders

    def refuse_words(self, allowed: str) -> None:
        """Raise UserError for the first word of a command that takes none."""
        for word in self.words:
            raise UserError(f"{word}: is not understood; allowed: {allowed}")


def parse(arguments: list[str], *keys: str) -> CommandLine:
    """The arguments of a command that has `keys` of its own; the last value of a key counts."""
    pairs = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    return CommandLine(
        words=[argument for argument in arguments if "=" not in argument],
        values={key: value for key, value in pairs.items() if key in keys},
        overrides=[f"{key}={value}" for key, value in pairs.items() if key not in keys],
    )


def run(command: Callable[[list[str]], None], usage: str, arguments: list[str]) -> None:
    """Run a command or print its usage; a user's mistake is one line and exit code 2."""
    if {"-h", "--help"} & set(arguments):
        print(usage)
        return
    try:
        command(arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(USER_ERROR)


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Within, a place that cannot be written to is a UserError that names it."""
    try:
        yield
    except OSError as error:
        raise UserError(f"out={out}: cannot be written ({error.strerror})") from error
