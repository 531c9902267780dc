"""Standard output and error that no reader can stop.

A reader that goes away (`| head`, a closed terminal), a full disk or a terminal without a letter
for Σ must not end what is being computed, or turn its result into a traceback. What a full disk has
lost is told at the end.
"""

import errno
import os
import sys
from contextlib import contextmanager, suppress
from io import TextIOWrapper

LOST = 1  # exit code where standard output is not what it should be
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class Unfailing(TextIOWrapper):
    """Text to a file descriptor, as long as it can be written; after that, to nowhere.

    lost: why not all of it was written, unless its reader went away.
    """

    lost: OSError | None = None

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """What is still in the buffers goes to nowhere, too, so that it is never in the way."""
        if error.errno != errno.EPIPE:
            self.lost = error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def make_unfailing() -> None:
    """For this process from now on. Streams that somebody has replaced are left alone."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is getattr(sys, f"__{name}__") and type(stream) is TextIOWrapper:
            steady = _unfailing(stream)
            setattr(sys, name, steady)
            setattr(sys, f"__{name}__", steady)


@contextmanager
def unfailing() -> "Iterator[None]":
    """As `make_unfailing`. If all goes well within but for what standard output should have had,
    that is one line and exit code LOST."""
    make_unfailing()
    try:
        yield
    except SystemExit as end:
        if not end.code:
            _tell_what_is_lost()
        raise
    _tell_what_is_lost()


def _tell_what_is_lost() -> None:
    if isinstance(stream := sys.stdout, Unfailing):
        stream.flush()
        if stream.lost:
            print(f"error: standard output: {stream.lost.strerror}", file=sys.stderr)
            sys.exit(LOST)


def _unfailing(stream: TextIOWrapper) -> Unfailing:
    with suppress(OSError):
        stream.flush()
    return Unfailing(
        open(stream.fileno(), "wb", closefd=False),
        encoding=stream.encoding,
        errors="replace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
