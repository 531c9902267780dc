"""How the command line reports errors."""

import contextlib
import sys
from collections.abc import Iterator

from rec_experiments.common import distributed
from rec_experiments.common.errors import (
    DISK_FULL,
    RESUMES,
    USER_ERROR,
    Diverged,
    UserError,
    causes,
    mistake,
    printable,
)


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Report a user's mistake in one line and exit with code 2; a full disk or a diverged run with
    code 1. Other errors pass. If several ranks fail, only the first one speaks."""
    try:
        yield
    except Exception as error:
        if any(isinstance(cause, KeyboardInterrupt) for cause in causes(error)):
            raise KeyboardInterrupt from None  # OmegaConf wraps it, as does a class definition
        code, line = _code_and_line(error)
        if not distributed.current().fails_first():
            sys.exit(code)
        if not line:
            raise
        print(f"error: {printable(line)}", file=sys.stderr)
        sys.exit(code)


def _code_and_line(error: Exception) -> tuple[int, str]:
    """The exit code, and what to tell the user; "" for an error of ours."""
    if isinstance(error, Diverged):
        return 1, str(error)
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return 1, f"{error.strerror}; {RESUMES}"
    if isinstance(error, UserError):
        return USER_ERROR, str(error)
    if type(error).__module__.partition(".")[0] in ("hydra", "omegaconf", "yaml"):
        from rec_experiments.config.composition import explain

        return USER_ERROR, explain(error)
    found = mistake(error)
    return (USER_ERROR, str(found)) if found else (1, "")
