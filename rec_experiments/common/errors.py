"""Errors that a user can fix, exit codes, and text that is safe for a terminal."""

import difflib
import errno
import importlib.util
import signal
import unicodedata
from collections.abc import Iterator, Sequence

USER_ERROR = 2  # exit code for bad input
# Signals that stop a run like Ctrl-C: from a scheduler, a closed terminal, a user.
STOPPING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the last is of a limit (ulimit -f)
RESUMES = "the same command resumes the run"

# Modules whose package has another name.
PACKAGES = {
    "PIL": "pillow", "antlr4": "antlr4-python3-runtime", "hydra": "hydra-core", "yaml": "pyyaml",
}  # fmt: skip

MOST_NAMED = 20  # of the words that are allowed, in an error of a few lines

ELSEWHERE = "another process is running it"  # the end of the error for a locked run folder
GOES_ON = "interrupted; finished runs are kept, the same command continues"  # of a sweep


class UserError(Exception):
    """Bad input: one clear line for the user, exit code 2, no traceback."""


class Diverged(Exception):
    """A run whose policy is no longer finite: one clear line, exit code 1, no traceback."""


def first_line(error: BaseException) -> str:
    """The message of an error in one line: its first line, and the next if that ends in a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def meant(word: str, allowed: Sequence[str], before: str = "") -> str:
    """The closest of the words that are allowed, with what stands `before` it, or some of them."""
    close = difflib.get_close_matches(word, allowed, n=1)
    if close:
        return f"did you mean {before}{close[0]}? --help lists all"
    more = "" if len(allowed) <= MOST_NAMED else ", …; --help lists all"
    return f"allowed: {', '.join(allowed[:MOST_NAMED])}{more}"


def check_installed(choice: str, package: str) -> None:
    """Raise UserError if the optional package of a choice, such as adapter=lora, is not installed.
    It is not imported. The extra has the name of the choice."""
    if importlib.util.find_spec(package) is None:
        extra = choice.partition("=")[2]
        raise UserError(
            f"{choice}: {package} is not installed; install this package with its extra {extra}, "
            f"as in pip install '.[{extra}]' in a checkout"
        )


def mistake(error: Exception) -> UserError | None:
    """The UserError for an error that the user can fix: a package that is not installed, a file
    name that is too long, a current folder that is gone, or values that need more memory than there
    is. None for any other error."""
    if isinstance(error, ModuleNotFoundError) and (module := _missing(error)):
        package = PACKAGES.get(module, module.replace("_", "-"))
        return UserError(f"{package}: is not installed here; python -m pip install {package}")
    if isinstance(error, FileNotFoundError) and error.filename is None:  # of os.getcwd
        return UserError("the current folder has been removed; change to one that exists")
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return UserError(f"{error.filename}: is too long for the name of a file")
    if isinstance(error, MemoryError):
        return UserError(f"needs more memory than this machine has ({first_line(error)})")
    return None


def _missing(error: BaseException | None) -> str:
    """The missing module, which only the cause of an error may name. "" for one of ours."""
    for part in causes(error):
        if isinstance(part, ModuleNotFoundError) and part.name:
            return "" if part.name.startswith("rec_experiments") else part.name.partition(".")[0]
    return ""


def printable(text: str) -> str:
    """A text without effects on a terminal: control characters are escaped, line ends and tabs
    become spaces."""
    return "".join(
        " " if character in "\n\t" else ascii(character)[1:-1] if _steers(character) else character
        for character in text
    )


def _steers(character: str) -> bool:
    """Whether it is a control or format character, or half of a surrogate pair."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, the one that it follows from, and so on, each once: Hydra raises errors that
    follow from each other in a circle."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        seen.append(error)
        yield error
        error = error.__cause__ or error.__context__
