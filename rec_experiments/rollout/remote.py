"""A worker in another process, so that drawing and training run side by side.

The other process answers orders, one at a time. Orders and answers go through a pipe that both ends
always read. Weights go through two slots of shared memory: one that batches are drawn from, and a
spare one for the next version or for an evaluation. The spare is overwritten only when all orders
on it are answered, so at most two versions wait or are in use, whatever the schedule.
"""

import atexit
import contextlib
import itertools
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from math import prod
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from queue import PriorityQueue
from typing import Any

import torch
from torch import Tensor

from rec_experiments.datasets.verifiers.verifier_pool import die_with_parent
from rec_experiments.distributed import memory_of, whole
from rec_experiments.errors import STOPPING, UserError
from rec_experiments.rollout.worker import (
    LocalWorker,
    PendingRollouts,
    RolloutRequest,
    Snapshot,
    Weights,
)
from rec_experiments.types import Rollouts

Build = Callable[[], LocalWorker]

GRACE = 5.0  # seconds for the process to end by itself: a batch, verifiers, an engine
# A terminal or a cluster sends these to all processes of a run; the trainer decides what follows.
SIGNALS = {signal.SIGINT, *STOPPING, signal.SIGUSR2}


class WorkerLost(RuntimeError):
    """The process that draws has died, or hangs."""


@dataclass(frozen=True, slots=True)
class Order:
    """Batches to draw together. slot: the shared memory that holds the weights of `version`.

    training: to train on; otherwise it is one evaluation, which goes before all of those.
    """

    number: int
    slot: int
    version: int
    requests: list[RolloutRequest]
    training: bool


Places = dict[str, tuple[torch.dtype, int, tuple[int, ...]]]


def layout(weights: Mapping[str, Tensor]) -> tuple[dict[torch.dtype, int], Places]:
    """How many elements of each dtype the weights have, and the place of each among them; those
    that are tied share one."""
    sizes: dict[torch.dtype, int] = {}
    places: Places = {}
    first: dict[Any, int] = {}
    for name, tensor in weights.items():
        shape, end = tuple(tensor.shape), sizes.get(tensor.dtype, 0)
        start = first.setdefault(memory_of(tensor), end)
        places[name] = (tensor.dtype, start, shape)
        sizes[tensor.dtype] = max(end, start + tensor.numel())
    return sizes, places


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Room for weights in shared memory that has no name, so nothing can be left behind.

    blocks: one for each dtype, since each takes a file descriptor. places: of each weight its
    dtype, its first element in the block, and its shape.
    """

    blocks: dict[torch.dtype, Tensor]
    places: Places

    @classmethod
    def like(cls, weights: Weights) -> "SharedWeights":
        """Raises UserError if there is too little shared memory."""
        sizes, places = layout(weights)
        try:
            blocks = {d: torch.empty(size, dtype=d).share_memory_() for d, size in sizes.items()}
        except RuntimeError as error:
            needed = 2 * sum(size * dtype.itemsize for dtype, size in sizes.items())
            raise UserError(
                f"pipeline=overlap: no room for {needed / 1e9:.1f} GB of weights in shared memory "
                "(/dev/shm); allow this machine or container more, or use pipeline=sequential"
            ) from error
        return cls(blocks, places)

    def tensors(self) -> Weights:
        return {
            name: self.blocks[dtype][start : start + prod(shape)].view(shape)
            for name, (dtype, start, shape) in self.places.items()
        }


@dataclass(slots=True)
class Slot:
    """Shared memory as the trainer sees it: what it holds, and the unanswered orders on it."""

    index: int
    tensors: Weights
    version: int | None = None
    orders: list[Future] = field(default_factory=list)


class RemoteWorker:
    """A `LocalWorker` in another process. Implements `rollout.RolloutWorker`.

    build: makes the worker over there, where it must be importable. weights: the layout of all
    weights to come. ahead: see `RolloutWorker`. environment: variables of the other process.

    Raises what `build` raises. Each method raises what the other process raised, its traceback in a
    note, or WorkerLost if that process has died or leaves an awaited answer out for `timeout`
    seconds. If this process is killed, the other one dies with it.
    """

    def __init__(
        self,
        build: Build,
        weights: Weights,
        *,
        ahead: int | None,
        timeout: float,
        environment: dict[str, str],
    ):
        self.ahead, self.timeout = ahead, timeout
        shared = [SharedWeights.like(weights) for _ in range(2)]
        self._held, self._spare = (Slot(i, part.tensors()) for i, part in enumerate(shared))
        self._numbers = itertools.count()
        self._expected: dict[int, Future] = {}
        self._lost: WorkerLost | None = None
        context = get_context("spawn")  # a fork is safe neither beside torch's threads nor CUDA's
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(build, theirs, shared))
        with _deaf(), _variables(environment):
            self._process.start()
        theirs.close()
        atexit.register(self._process.kill)  # without it, a forgotten `close` would block the exit
        self._sender = ThreadPoolExecutor(1)  # a full pipe must not hold up training
        self._receiver = threading.Thread(target=self._receive, daemon=True)
        _, started = self._expect()
        self._receiver.start()
        try:
            self._result(started)
        except BaseException:
            self.close()
            raise

    def hold(self, snapshot: Snapshot) -> Snapshot:
        slot = self._fill_spare(snapshot)
        self._held, self._spare = slot, self._held
        return Snapshot(snapshot.version, slot.tensors)

    def submit(self, snapshot: Snapshot, requests: list[RolloutRequest]) -> list[PendingRollouts]:
        assert snapshot.version == self._held.version
        future = self._order(self._held, requests, training=True)
        return [partial(self._batch, future, n) for n in range(len(requests))]

    def answer(self, snapshot: Snapshot, request: RolloutRequest) -> Rollouts:
        """Goes before all that is submitted, except what is being drawn."""
        held = snapshot.version == self._held.version
        slot = self._held if held else self._fill_spare(snapshot)
        return self._result(self._order(slot, [request], training=False))

    def _batch(self, future: Future, number: int) -> Rollouts:
        """One of the batches that were drawn together."""
        return self._result(future)[number]

    def close(self) -> None:
        """End the other process: by itself, or after GRACE seconds by force."""
        if self._process.is_alive():
            self._send(None)
            self._process.join(GRACE)
            self._process.kill()
        self._process.join()
        self._receiver.join()
        self._sender.shutdown()
        self._connection.close()
        atexit.unregister(self._process.kill)

    def _fill_spare(self, snapshot: Snapshot) -> Slot:
        """The spare slot with these weights, once nothing is drawn from what it held."""
        slot = self._spare
        if slot.version != snapshot.version:
            for future in slot.orders:
                self._result(future)
            for name, tensor in snapshot.weights.items():
                slot.tensors[name].copy_(whole(tensor))
            slot.version = snapshot.version
        return slot

    def _order(self, slot: Slot, requests: list[RolloutRequest], training: bool) -> Future:
        assert slot.version is not None
        number, future = self._expect()
        order = Order(number, slot.index, slot.version, requests, training)
        slot.orders = [*(f for f in slot.orders if not f.done()), future]
        self._send((training, number, order))
        return future

    def _send(self, message: Any) -> None:
        self._sender.submit(self._connection.send_bytes, pickle.dumps(message))

    def _expect(self) -> tuple[int, Future]:
        """The next number, and what becomes the answer under that number."""
        number = next(self._numbers)
        future: Future = Future()
        self._expected[number] = future
        if self._lost:  # read after the entry is made, set before the entries are read
            raise self._lost
        return number, future

    def _result(self, future: Future) -> Any:
        futures.wait([future], self.timeout)
        if not future.done():
            self._process.kill()
            raise WorkerLost(
                f"the process that draws batches gave no answer for {self.timeout:g} s "
                "(pipeline.timeout); the same command resumes the run"
            )
        return future.result()

    def _receive(self) -> None:
        """Body of a thread: pass answers on until the other process has ended."""
        try:
            while self._connection in wait([self._connection, self._process.sentinel]):
                number, outcome = self._connection.recv()
                future = self._expected.pop(number)
                if isinstance(outcome, Exception):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
        except (EOFError, OSError):
            pass  # it died, maybe within a message
        finally:
            self._process.join(GRACE)
            code = self._process.exitcode or 0
            how = f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
            self._lost = WorkerLost(
                f"the process that draws batches died ({how}); the same command resumes the run"
            )
            for future in list(self._expected.values()):
                future.set_exception(self._lost)


def work(build: Build, connection: Connection, shared: list[SharedWeights]) -> None:
    """Body of the other process: a worker that answers orders until the pipe says stop."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    if sys.platform == "linux":
        die_with_parent()
    parent = parent_process()
    if parent is None or not parent.is_alive():
        return  # it died while this process was starting
    try:
        worker = build()
    except Exception as error:
        connection.send((0, _portable(error)))
        return
    connection.send((0, None))
    slots = [part.tensors() for part in shared]
    orders: PriorityQueue[tuple[int, int, Order | None]] = PriorityQueue()
    threading.Thread(target=_read, args=(connection, orders), daemon=True).start()
    while (order := orders.get()[2]) is not None:
        snapshot = Snapshot(order.version, slots[order.slot])
        try:
            outcome: list[Rollouts] | Rollouts | Exception
            if order.training:
                outcome = worker.draw(snapshot, order.requests)
            else:
                outcome = worker.answer(snapshot, order.requests[0])
        except Exception as error:
            outcome = _portable(error)
        connection.send((order.number, outcome))
    worker.close()


def _read(connection: Connection, orders: PriorityQueue) -> None:
    """Body of a thread: take in orders, evaluations to the front, then the end of all."""
    with contextlib.suppress(EOFError, OSError):
        while (message := connection.recv()) is not None:
            orders.put(message)
    orders.put((-1, 0, None))


def _portable(error: Exception) -> Exception:
    """The error with its traceback as a note, as the same type if that survives pickling."""
    note = f"In the process that draws batches:\n{traceback.format_exc()}"
    error.add_note(note)
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        plain.add_note(note)
        return plain


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """A process started meanwhile takes no SIGNALS until it unblocks them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _variables(values: dict[str, str]) -> Iterator[None]:
    """A process started meanwhile finds these environment variables."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
