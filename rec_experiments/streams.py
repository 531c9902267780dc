"""Standard output and error that no reader can stop.

A reader that goes away (`| head`, a closed terminal), a full disk or a terminal without a letter
for Σ must not end what is being computed, or turn its result into a traceback.
"""

import contextlib
import os
import sys
from io import TextIOWrapper


class Unfailing(TextIOWrapper):
    """Text to a file descriptor, as long as it can be written; after that, to nowhere."""

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError:
            self._give_up()
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        """What is still in the buffers goes to nowhere, too, so that it is never in the way."""
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


def _unfailing(stream: TextIOWrapper) -> Unfailing:
    with contextlib.suppress(OSError):
        stream.flush()
    return Unfailing(
        open(stream.fileno(), "wb", closefd=False),
        encoding=stream.encoding,
        errors="replace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
