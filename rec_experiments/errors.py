"""What goes wrong, and how a process says so: exit codes and the errors that are a user's."""

import errno
import signal
import unicodedata

USER_ERROR = 2  # exit code for bad input
# What ends a run from outside, as Ctrl-C does: a scheduler, a terminal that is closed, a user.
STOPPING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
INTERRUPTED = tuple(128 + number for number in (signal.SIGINT, *STOPPING))  # exit codes
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the last is of a limit (ulimit -f)
OURS = ("rec_experiments", "hydra_plugins.rec_")  # modules that are there, or ours to mend
RESUMES = "the same command resumes the run"

# Modules whose package has another name; that of the module may be a stranger's.
PACKAGES = {
    "PIL": "pillow", "antlr4": "antlr4-python3-runtime", "hydra": "hydra-core", "yaml": "pyyaml",
}  # fmt: skip

GOES_ON = "interrupted; what is finished is kept, the same command goes on"  # of a sweep


class UserError(Exception):
    """Bad input: one clear line for the user, exit code 2, no traceback."""


class Diverged(Exception):
    """A run whose policy is no longer finite: one clear line, exit code 1, no traceback."""


def first_line(error: BaseException) -> str:
    """What an error says, in one line: the first, and what it announces if it ends in a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def mistake(error: Exception) -> UserError | None:
    """What the user can mend, if an error of another kind is that: a package that is not installed,
    or a name that no file can have."""
    if isinstance(error, ModuleNotFoundError) and (module := _missing(error)):
        package = PACKAGES.get(module, module.replace("_", "-"))
        return UserError(f"{package}: is not installed here; python -m pip install {package}")
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return UserError(f"{error.filename}: is too long for the name of a file")
    return None


def _missing(error: BaseException | None) -> str:
    """The module that is not there, which may be named by what an error follows from alone. "" for
    one of ours."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            return "" if error.name.startswith(OURS) else error.name.partition(".")[0]
        error = error.__cause__ or error.__context__
    return ""


def printable(text: str) -> str:
    """A text for a terminal, which it cannot steer: control characters are made visible, line ends
    and tabs become spaces."""
    return "".join(
        " " if character in "\n\t" else ascii(character)[1:-1] if _steers(character) else character
        for character in text
    )


def _steers(character: str) -> bool:
    """Whether it is a control character, turns the direction of writing, or is half of one."""
    return unicodedata.category(character) in ("Cc", "Cf", "Cs")
