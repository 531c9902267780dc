"""How a command reads its arguments: cyclopts, whose messages become one-line errors.

A command is a module whose docstring is its description and whose function `main` declares the
arguments by its parameters. Options are written --OPTION VALUE; KEY=VALUE is an override, as on the
command line of a run.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import cyclopts
from cyclopts import Parameter, Token
from rich.console import Console

from rec_experiments.common.errors import UserError
from rec_experiments.common.files import ARCHIVE

PROGRAM = "python -m rec_experiments"
WIDTH = 100  # columns of a help page


def call(name: str, about: str | None, main: Callable[..., None], words: Iterable[str]) -> None:
    """Call `main` with the arguments that these words give it. Raises UserError for words that do
    not fit. --help prints the page."""
    program = f"{PROGRAM} {name}".rstrip()
    app = cyclopts.App(
        name=program,
        help=" ".join((about or "").split()),
        help_format="plaintext",
        console=Console(width=WIDTH, highlight=False),
        default_parameter=Parameter(negative=()),
        version_flags=(),
        default_command=main,
    )
    app["--help"].show = False
    try:
        command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        said = " ".join(str(error).split()).rstrip(".")
        if isinstance(error, cyclopts.UnusedCliTokensError):
            said = f"{(error.unused_tokens or [''])[0]}: is not expected"
        if isinstance(error, cyclopts.UnknownOptionError):
            allowed = ", ".join(name for each in error.argument_collection for name in each.names)
            said = f"{error.token.keyword or error.token.value}: unknown option; allowed: {allowed}"
        raise UserError(f"{said}; see {program} --help") from None
    command(*bound.args, **bound.kwargs)


def option(read: Callable[[str], Any], help: str, name: str | None = None) -> Parameter:
    """An argument whose text `read` turns into its value. A ValueError of `read` becomes a
    UserError that names the option."""

    def converter(kind: Any, tokens: Sequence[Token]) -> Any:
        token = tokens[-1]
        try:
            return read(token.value)
        except ValueError as error:
            before = f"{token.keyword}=" if token.keyword else ""
            raise UserError(f"{before}{error}") from None

    return Parameter(name, converter=converter, n_tokens=1, accepts_keys=False, help=help)


def number(help: str, least: float, most: float | None = None) -> Parameter:
    """A number in these bounds."""
    return Parameter(validator=cyclopts.validators.Number(gte=least, lte=most), help=help)


def path(text: str) -> Path:
    """A file or folder: a shell leaves the ~ of --out=~/NAME as it is."""
    return Path(os.path.expanduser(text))


def run_folders(text: str) -> list[Path]:
    """FOLDER,…: folders, or archives of runs, that exist."""
    for name in text.split(","):
        place = path(name)
        if not name or not (place.is_file() if place.name.endswith(ARCHIVE) else place.is_dir()):
            raise ValueError(f"{name}: no such folder or archive (NAME{ARCHIVE})")
    return [*map(path, text.split(","))]


def file_ending(*suffixes: str) -> Callable[[str], Path]:
    """An output file. The suffix is checked so that no other file is overwritten."""

    def file(text: str) -> Path:
        if not text.endswith(suffixes):
            raise ValueError(f"{text}: the name must end in {' or '.join(suffixes)}")
        return path(text)

    return file


def override(text: str) -> str:
    """KEY=VALUE, as on the command line of a run or of a sweep. A shell leaves KEY=~/NAME as it
    is. Raises UserError for another text."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise UserError(f"{text}: must be KEY=VALUE")
    return f"{key}={os.path.expanduser(value)}"


def names_and_overrides(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """The words without and those with an equals sign. Raises UserError for one without a key."""
    words = [*words]
    return [word for word in words if "=" not in word], [override(w) for w in words if "=" in w]


def overrides(help: str) -> Parameter:
    """KEY=VALUE … among the arguments."""
    return option(override, help, "KEY=VALUE")


# What several commands take.
Runs = Annotated[
    list[Path] | None,
    option(
        run_folders,
        f"folders that contain the run folders, or archives of runs (NAME{ARCHIVE}), separated by "
        "commas; by default where the sweeps put them",
    ),
]
Overrides = Annotated[
    str, overrides("selects runs as on the command line of the sweep: scale=paper, seed=0,1, …")
]
