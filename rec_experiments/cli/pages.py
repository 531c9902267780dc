"""The pages of `--help`, kept as long as nothing changes that they are made of.

To compose one takes half a second, most of it Hydra's import. To read all that it is made of takes
some milliseconds: the code and configuration of this package, of packages outside and of Hydra's
plugins, and which releases are installed. A page is kept under a digest of these, so it is never
another than the one that would be composed. Until one is found, nothing but a few small modules of
Python's own library is imported.
"""

import os
import sys

from rec_experiments import cache
from rec_experiments.config import installed

HELP = ("-h", "--help")
RUN = "run"  # the name of the first page
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def asked(words: list[str]) -> str | None:
    """The name of the page that the command line asks for and nothing else: RUN, or a command."""
    match words:
        case [word] if word in HELP:
            return RUN
        case [command, word] if word in HELP and command.isidentifier():
            return command
    return None


def show(name: str, compose: "Callable[[], None]") -> None:
    """Print a page: as it was kept, or as `compose` prints it now, which is then kept."""
    kind, made_of = f"help_{name}", digest()
    page = cache.text(kind, made_of) if made_of else None
    if page is None:
        page = _printed(compose)
        if made_of and made_of == digest():  # nothing has changed meanwhile
            cache.keep_text(kind, made_of, page)
    sys.stdout.write(page)


def digest() -> str | None:
    """Of all that pages are made of; None where that cannot be told."""
    if os.path.exists(installed.COPIED):
        return None
    try:
        found = installed.distributions()
        folders = [
            installed.PACKAGE,
            installed.CONF,
            *installed.plugin_folders(),
            *installed.folders_outside(found),
        ]
        releases = [(os.path.basename(folder), entries) for folder, entries in found.items()]
        return cache.digest_of_files(folders, repr((sys.version, releases)))
    except (OSError, LookupError, ValueError):
        return None


def _printed(compose: "Callable[[], None]") -> str:
    from contextlib import redirect_stdout
    from io import StringIO

    with redirect_stdout(StringIO()) as said:
        compose()
    return said.getvalue()
