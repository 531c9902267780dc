"""Verifying a batch of responses, whatever they hold: every item gets a result, in order.

A verifier is a pure function of response and answer. `inline_verifier` calls it in this
process and suits verifiers that cannot hang. `VerifierPool` calls it in processes that can be
killed, because 9^9^9^9^9 in a response stops neither at an exception nor at a signal handler.
"""

import contextlib
import dataclasses
import fcntl
import importlib
import multiprocessing
import os
import pickle
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import ClassVar

from pebble import ProcessPool

from rec_experiments.common.errors import UserError, first_line, printable
from rec_experiments.common.problems import VerifierResult

Item = tuple[str, str]  # response text, answer
Verify = Callable[[str, str], VerifierResult]
BatchVerifier = Callable[[list[Item]], list[VerifierResult]]

TIMED_OUT = VerifierResult(reward=0.0, accuracy=0.0, timed_out=True)
CRASHED = VerifierResult(reward=0.0, accuracy=0.0, crashed=True, error="its process ended")

STARTUP = 120.0  # seconds for a worker to import the verifier on a busy machine
MEMORY = 2 << 30  # bytes that one worker may take for its items
SLOW_IMPORTS = ["rec_experiments.datasets.verifiers.expressions"]


def inline_verifier(verify: Verify) -> BatchVerifier:
    """Verify in this process, without a deadline. An exception of `verify` scores as crashed."""
    return lambda items: [_safely(verify, *item) for item in items]


def report_crashes(results: Sequence[VerifierResult]) -> None:
    """Tell the user at once that the verifier crashed on responses of a batch, once for each kind
    of error. Raises UserError if it crashed on all of several responses."""
    errors = [result.error for result in results if result.crashed]
    if not errors:
        return
    told = f"the verifier crashed on {len(errors)} of {len(results)} responses: {errors[0]}"
    if len(errors) == len(results) > 1:
        raise UserError(told)
    kind = errors[0].partition(":")[0]
    if kind not in _told:
        _told.add(kind)
        print(printable(told), file=sys.stderr, flush=True)


_told: set[str] = set()  # kinds of errors that the user knows of


class _WorkerProcess(ForkServerProcess):
    """A worker, as its parent sees it: it ends with the processes that its verifier started."""

    def terminate(self) -> None:
        try:
            os.killpg(self.pid or 0, signal.SIGKILL)
        except ProcessLookupError:  # it has not begun, or has ended
            super().terminate()


class _Context(ForkServerContext):
    Process = _WorkerProcess


class VerifierPool:
    """Verify in `workers` killable processes; an item may take `timeout` seconds.

    A time-out scores 0 with `timed_out`; a worker that dies and an exception of `verify` score 0
    with `crashed`. An item whose worker died is tried once more, alone, so that no item pays for
    another. The processes start with the first call and stay until `close()` or the end of the
    interpreter; if this process is killed, they die with it.

    `verify` must be importable in another process: a function or method of a module, no lambda.
    imports: modules that it needs and that are slow to load; no item pays for them.
    A call raises RuntimeError if no worker starts.
    """

    def __init__(self, verify: Verify, workers: int, timeout: float, imports: Sequence[str] = ()):
        self.workers, self.timeout = workers, timeout
        self._pickled = pickle.dumps(verify)
        self._module, self._imports = verify.__module__, [*SLOW_IMPORTS, *imports]
        self._pool: ProcessPool | None = None

    def __call__(self, items: Sequence[Item]) -> list[VerifierResult]:
        if not items:
            return []
        results = self._attempt(items)
        return [
            result or self._attempt([item])[0] or CRASHED
            for item, result in zip(items, results, strict=True)
        ]

    def close(self) -> None:
        """Stop the workers. A later call starts new ones."""
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None

    def _attempt(self, items: Sequence[Item]) -> list[VerifierResult | None]:
        """A result for each item, or None where its worker died."""
        pool = self._running()
        try:
            futures: list[Future] = []
            with contextlib.suppress(RuntimeError):  # the pool broke on the way
                for item in items:
                    futures.append(pool.schedule(_judge, args=item, timeout=self.timeout))
            results = [self._outcome(future, pool) for future in futures]
        except BaseException:  # Ctrl-C: the next call must not queue behind what is left of this
            self.close()
            raise
        return results + [None] * (len(items) - len(results))

    def _outcome(self, future: Future, pool: ProcessPool) -> VerifierResult | None:
        # Items start in order, so this one starts at the latest when those now running are over.
        # A future that outlasts that is lost: its worker died between taking it and saying so.
        patience = 2 * self.timeout + STARTUP
        try:
            error = future.exception(timeout=patience if pool.active else 0)
        except TimeoutError:
            self.close()
            return None
        if error is None:
            return future.result()
        return TIMED_OUT if isinstance(error, TimeoutError) else None

    def _running(self) -> ProcessPool:
        """The pool, started if there is none that works."""
        if self._pool is not None and self._pool.active:
            return self._pool
        self.close()
        # A fork server imports once and forks a replacement in milliseconds. Unlike a fork of this
        # process it is safe next to the threads of torch.
        context = _Context()
        context.set_forkserver_preload(["__main__", self._module, *self._imports])
        self._pool = ProcessPool(
            self.workers,
            initializer=_prepare,
            initargs=(self._pickled, self._imports),
            context=context,
        )
        error = self._pool.schedule(_ready).exception(timeout=STARTUP)
        if error is not None:
            self.close()
            raise RuntimeError(f"verifier workers do not start: {error!r}") from error
        return self._pool


def _safely(verify: Verify, response: str, answer: str) -> VerifierResult:
    try:
        return verify(response, answer)
    except (Exception, SystemExit) as error:  # whatever it is, the others must be judged
        return dataclasses.replace(CRASHED, error=f"{type(error).__name__}: {first_line(error)}")


# The rest runs in the workers.


class _Worker:
    """What a worker process holds between items."""

    verify: ClassVar[Verify]


def _prepare(pickled: bytes, imports: Sequence[str]) -> None:
    """Let this worker end with its parent, and load the verifier before any deadline counts."""
    _Worker.verify = pickle.loads(pickled)
    for name in imports:  # done already, unless the fork server could not find them
        importlib.import_module(name)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # C code never returns to a Python handler
    os.setpgid(0, 0)
    if sys.platform == "linux":
        _limit_memory()
        die_with_parent(-os.getpgrp())


def _limit_memory() -> None:
    """A number too large to hold then raises MemoryError instead of filling the machine."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = mapped + MEMORY if hard == resource.RLIM_INFINITY else min(mapped + MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


def die_with_parent(whom: int) -> None:
    """Let the kernel end a process, or the process group −`whom`, when the pipe from this process
    to its parent closes, even if Python hangs.

    The parent-death signal of prctl would be of no use: it watches the thread that forked, here
    the fork server, and that lives as long as any worker does.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, whom)
    flags = fcntl.fcntl(parent.sentinel, fcntl.F_GETFL)
    fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, flags | os.O_ASYNC)  # SIGIO, which terminates


def _ready() -> None:
    """Answers once a worker has started."""


def _judge(response: str, answer: str) -> VerifierResult:
    return _safely(_Worker.verify, response, answer)
