"""Work that several processes do beside each other, on what this one has in memory."""

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_work: Callable[[Any], Any]  # of a process that was forked


def cores() -> int:
    """That this process may use. One where processes cannot be forked with all they have loaded."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


@contextlib.contextmanager
def forked(
    work: Callable[[Item], Result], items: Sequence[Item], together: int = 1
) -> Iterator[Iterator[Result]]:
    """`work` of each item, in their order, done by a process a core, to which `together` items are
    sent at a time.

    Processes are forked here, so that nothing is sent to them but items; what they return is. An
    error in one is raised where its result is taken. Where there would be one process there is
    none, and each result is found when it is taken.
    """
    processes = min(cores(), -(-len(items) // together))
    if processes < 2:
        yield map(work, items)
        return
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, context, initializer=_take, initargs=(work,)) as pool:
        yield pool.map(_call, items, chunksize=together)


def _take(work: Callable[[Any], Any]) -> None:
    global _work  # noqa: PLW0603 (the one that this process was forked for)
    _work = work


def _call(item: Any) -> Any:
    return _work(item)
