"""Work that several processes do beside each other, on what this one has in memory."""

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator
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
    work: Callable[[Item], Result],
) -> Iterator[Callable[[Iterable[Item]], Iterator[Result]]]:
    """What it yields starts `work` on items, by a process a core, and gives the results in order.

    Processes are forked once it is called, so that nothing is sent to them but an item; what they
    return is. An error in one is raised where its result is taken. With one core there are none,
    and each result is found when it is taken.
    """
    if cores() == 1:
        yield lambda items: map(work, items)
        return
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(cores(), context, initializer=_take, initargs=(work,)) as pool:
        yield lambda items: pool.map(_call, items)


def _take(work: Callable[[Any], Any]) -> None:
    global _work  # noqa: PLW0603 (the one that this process was forked for)
    _work = work


def _call(item: Any) -> Any:
    return _work(item)
