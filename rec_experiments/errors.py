"""What goes wrong, and how a process says so: exit codes and the errors that are a user's."""

import errno
import signal

USER_ERROR = 2  # exit code for bad input
# Exit codes of a run stopped from outside.
INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
RESUMES = "the same command resumes the run"


class UserError(Exception):
    """Bad input: one clear line for the user, exit code 2, no traceback."""


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
