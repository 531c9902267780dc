"""`python -m rec_experiments`: a sub-command if the first word names one, a run otherwise.

`python -m rec_experiments.NAME …` is the same as `python -m rec_experiments NAME …`. What a word
needs is imported once it is known: a page that was kept needs next to nothing.
"""

import sys
from importlib import import_module

from rec_experiments.cli import pages, streams

ENVIRONMENT = "or use that of make install: source .venv/bin/activate"


def main() -> None:
    """Entry point of all that this project does."""
    with streams.unfailing():
        if page := pages.asked(sys.argv[1:]):
            pages.show(page, _start)
        else:
            _start()


def _start() -> None:
    """What the command line says."""
    from rec_experiments.errors import USER_ERROR, UserError, mistake

    try:
        from rec_experiments.cli import command
        from rec_experiments.cli.help import COMMANDS
    except ModuleNotFoundError as error:  # without it not even a mistake can be told
        if not (found := mistake(error)):
            raise
        print(f"error: {found}; {ENVIRONMENT}", file=sys.stderr)
        sys.exit(USER_ERROR)

    if sys.argv[1:2] and sys.argv[1] in pages.HELP and {*sys.argv[2:3]} & COMMANDS.keys():
        sys.argv[1:3] = sys.argv[2], sys.argv[1]  # the page of a command, asked for from behind
    word = sys.argv[1] if len(sys.argv) > 1 else ""
    if word in COMMANDS:
        del sys.argv[1]  # as if its module had been called
        with command.told_once():
            import_module(module(word)).main(sys.argv[1:])
    elif word == "--version":
        from importlib.metadata import version

        print(f"rec_experiments {version('rec_experiments')}")
    elif word and not set("=-+~@/.").intersection(word):  # no override, and no option
        command.refuse(UserError(f"{word}: is no sub-command; {_allowed(word, COMMANDS)}"))
    else:
        from rec_experiments.cli import train

        train.main()


def module(name: str) -> str:
    """The module of a sub-command, which is not imported before it is called."""
    return f"{__package__}.{name}"


def _allowed(word: str, names: dict[str, str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word, names, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return f"{hint}allowed: {', '.join(names)}, or key=value for a run (see --help)"
