"""Signals that ask a process to stop."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType

from rec_experiments.common.errors import STOPPING


@contextlib.contextmanager
def on_stop(act: Callable[[int], None]) -> Iterator[None]:
    """Call `act` with the number of a signal of STOPPING, in place of ending the process.

    A signal that the process was started to ignore stays ignored, such as SIGHUP under nohup.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        act(number)

    handled = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def ignore_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C, so that a second one cannot interrupt the cleanup after the first."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
