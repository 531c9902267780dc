"""`python -m rec_experiments`: a sub-command if the first word names one, a run otherwise.

`python -m rec_experiments.NAME …` is the same as `python -m rec_experiments NAME …`.
"""

import difflib
import importlib
import importlib.util
import sys
from importlib.metadata import version

from rec_experiments import cli, command
from rec_experiments.errors import UserError
from rec_experiments.help import COMMANDS


def main() -> None:
    """Entry point of all that this project does."""
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word in COMMANDS:
        del sys.argv[1]  # as if its module had been called
        with command.told_once():
            importlib.import_module(module(word)).main(sys.argv[1:])
    elif word == "--version":
        print(f"rec_experiments {version('rec_experiments')}")
    elif word and not set("=-+~@/.").intersection(word):  # no override, and no option
        command.refuse(UserError(f"{word}: is no sub-command; {_allowed(word)}"))
    else:
        cli.main()


def module(name: str) -> str:
    """The module of a sub-command, which is not imported before it is called."""
    package = f"{__package__}.{name}"
    spec = importlib.util.find_spec(package)
    assert spec is not None, package
    return f"{package}.__main__" if spec.submodule_search_locations else package


def _allowed(word: str) -> str:
    close = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"{hint}allowed: {', '.join(COMMANDS)}, or key=value for a run (see --help)"
