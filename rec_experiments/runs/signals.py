"""Signals that end a process from outside, and how it is let end in good order."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from rec_experiments.errors import STOPPING


@contextlib.contextmanager
def on_stop(act: Callable[[int], None]) -> Iterator[None]:
    """Within, a signal of STOPPING calls `act` with its number instead of killing the process.

    One that the process was started to ignore stays ignored, as SIGHUP under nohup.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        act(number)

    heard = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Within, Ctrl-C does nothing: a second one must not cut off what the first has begun."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
