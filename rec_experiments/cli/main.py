"""`python -m rec_experiments`: a command if the first word names one, a run otherwise.

A command is a module of this package (`parser`), imported only when it is called.
"""

import difflib
import io
import os
import signal
import sys
from importlib import import_module
from importlib.metadata import version

from rec_experiments.cli.errors import one_line_errors
from rec_experiments.common.errors import UserError

HELP = ("-h", "--help")
COMMANDS = {
    "watch": "show running and finished runs, and warn before a collapse",
    "figures": "draw figures from runs",
    "claims": "judge the paper's claims on the runs that exist",
    "regime": "measure how far the policy moves, next to published values",
    "report": "write one local page of figures, claims and runs",
    "sweeps": "list the sweeps, the jobs of one, or their states",
    "algorithms": "list the presets with their formulas",
    "plan": "estimate what a run needs: memory of each phase, time of a step",
    "serve": "start vLLM's server for runs with sampler=vllm_server",
    "export": "write a run's model as a transformers folder",
    "export-loss": "write a preset as a loss for TRL, verl or prime-rl",
    "evaluate": "score a run's model, or any other model",
    "archive": "write the evaluations of finished runs into one compressed table",
    "check": "say before training whether a model can learn from its data",
    "audit": "read a training batch of any trainer, and name what is wrong with it",
    "get": "download a language model from the package index",
}


def main() -> None:
    """The entry point. Characters that the terminal cannot show are replaced; a reader that closes
    the pipe (`| head`) ends the command quietly."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 (closed by the shell: `>&-`)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    os.environ["MPLBACKEND"] = "agg"  # pictures are files, and an unknown one fails the import
    # Hydra imports all modules of `hydra_plugins`, and `python -m` searches the current folder for
    # it first, which may be the folder of somebody else's data.
    sys.modules["hydra_plugins"] = None  # type: ignore[assignment]
    try:
        try:
            run_command(*sys.argv[1:])
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # as in Python's documentation, "Note on SIGPIPE"
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


@one_line_errors()
def run_command(*words: str) -> None:
    """Run what a command line says. A user's mistake is one line and exit code 2."""
    words = tuple(sorted(words, key=HELP.__contains__))  # --help COMMAND is COMMAND --help
    first = words[0] if words else ""
    if first == "--version":
        print(f"rec_experiments {version('rec_experiments')}")
    elif first in COMMANDS:
        from rec_experiments.cli import parser

        module = import_module(f"{__package__}.{first.replace('-', '_')}")
        parser.call(first, module.__doc__, module.main, words[1:])
    elif not {*HELP}.isdisjoint(words):
        from rec_experiments.cli import help

        print(help.page([word for word in words if not word.startswith("-")], COMMANDS))
    elif first and not set("=-+~@/.").intersection(first):  # neither override nor option
        raise UserError(f"{first}: no such command; {_meant(first)}")
    else:
        from rec_experiments.cli import parser, train

        with train.as_rank(), one_line_errors():
            parser.call("", train.__doc__, train.main, words)


def _meant(word: str) -> str:
    """What a word that is no command may stand for."""
    from rec_experiments.config.plugins import choices_by_group
    from rec_experiments.sweeps import names

    known = {preset: f"algo={preset}" for preset in choices_by_group()["algo"]}
    known |= {sweep: f"-m sweep={sweep} or figures {sweep}" for sweep in names()}
    known |= {command: command for command in COMMANDS}
    if close := difflib.get_close_matches(word, known, n=1):
        return f"did you mean {known[close[0]]}? --help lists the commands"
    return f"allowed: {', '.join(COMMANDS)}, or key=value for a run (see --help)"
