"""How a command reads its arguments: argparse, with options that are written KEY=VALUE."""

import argparse
import functools
import os
import re
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rec_experiments.errors import UserError
from rec_experiments.files import ARCHIVE

PROGRAM = "python -m rec_experiments"
WIDTH = 100  # columns of a help page
# What several commands say about the same option.
RUNS = (
    f"folders that contain the run folders, or archives of runs ({ARCHIVE}); default: where the "
    "sweeps put them"
)
OVERRIDES = "selects runs as on the command line of the sweep: scale=paper, seed=0,1, …"


class Parser(argparse.ArgumentParser):
    """Reads the arguments of one command.

    An option is declared as argparse wants it (`--out`). Users write `out=FILE`, as in the
    overrides of Hydra, and so do help pages and errors.
    """

    def __init__(self, name: str, about: str | None):
        self.keys: set[str] = set()
        self.has_overrides = False
        super().__init__(
            prog=f"{PROGRAM} {name}",
            description=about,
            allow_abbrev=False,
            formatter_class=functools.partial(
                argparse.HelpFormatter, max_help_position=32, width=WIDTH
            ),
        )

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:
        self.keys |= {name.removeprefix("--") for name in names if name.startswith("--")}
        return super().add_argument(*names, **options)

    def add_overrides(self, meaning: str = OVERRIDES) -> None:
        """Accept KEY=VALUE with any other key. Call it after all words are declared."""
        self.has_overrides = True
        self.add_argument("overrides", nargs="*", default=[], metavar="KEY=VALUE", help=meaning)

    def parse(self, arguments: list[str]) -> Namespace:
        """The last value of an option counts. Raises UserError for an argument that is not allowed.

        --help prints the page and exits.
        """
        options, overrides, words = [], [], []
        for argument in arguments:
            key, equals, _ = argument.partition("=")
            if equals and not key:
                self.error(f"unrecognized arguments: {argument}")
            if equals and key in self.keys:
                options.append(f"--{argument}")
            elif equals and key and not key.startswith("-") and self.has_overrides:
                overrides.append(argument)
            else:
                words.append(argument)
        found = self.parse_args([*options, *words])
        if self.has_overrides:
            for word in found.overrides:
                self.error(f"unrecognized arguments: {word}")
            found.overrides = overrides
        return found

    def error(self, message: str) -> NoReturn:
        """Raise the UserError for a message of argparse."""
        message = re.sub(r"^argument --(\w+): ", r"\1=", message.removeprefix("argument "))
        message = re.sub(r"^--(\w+): ", r"\1=", message)
        if "required: " in message:
            message = re.sub(r"--(\w+)", r"\1=", message)
        raise UserError(f"{message}; see {self.prog} --help")

    def format_help(self) -> str:
        page = re.sub(r"^  --(\w+) (\S+)", r"  \1=\2  ", super().format_help(), flags=re.MULTILINE)
        usage, blank, rest = page.partition("\n\n")
        return re.sub(r"--(\w+) (?=\S)", r"\1=", usage) + blank + rest


def path(text: str) -> Path:
    """The type of a file or folder: a shell leaves the ~ of KEY=~/NAME as it is."""
    return Path(os.path.expanduser(text))


def run_folders(text: str) -> list[Path]:
    """The type of an option FOLDER,…: folders, or archives of runs, that exist."""
    for name in text.split(","):
        place = path(name)
        if not name or not (place.is_file() if place.name.endswith(ARCHIVE) else place.is_dir()):
            raise ArgumentTypeError(f"{name}: no such folder or archive (NAME{ARCHIVE})")
    return [*map(path, text.split(","))]


def file_ending(*suffixes: str) -> Callable[[str], Path]:
    """The type of an output file. The suffix is checked so that no other file is overwritten."""

    def file(text: str) -> Path:
        if not text.endswith(suffixes):
            raise ArgumentTypeError(f"{text}: the name must end in {' or '.join(suffixes)}")
        return path(text)

    return file


def names_among(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """The type of an option NAME,…."""

    def names(text: str) -> list[str]:
        for name in text.split(","):
            if name not in allowed:
                raise ArgumentTypeError(
                    f"{name}: does not exist; allowed, separated by commas: {', '.join(allowed)}"
                )
        return text.split(",")

    return names


def number_between(least: float, most: float, kind: type = int) -> Callable[[str], Any]:
    """The type of an option with a number; infinite bounds are allowed."""

    def number(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not least <= value <= most:
            what = "a whole number" if kind is int else "a number"
            bounds = (
                f"at least {least:g}" if most == float("inf") else f"from {least:g} to {most:g}"
            )
            raise ArgumentTypeError(f"{text}: must be {what}, {bounds}")
        return value

    return number
