"""A rollout worker in another process, so that drawing and training overlap.

A thread of the trainer's process sends one order at a time and waits for its answer; orders wait in
a priority queue, evaluations first. Weights are passed in slots of shared memory: one for each
version that a draw is made from, usually one, and a spare one for the next version or an
evaluation. The spare one is overwritten only when all orders on it are answered.

An executor does not fit: if its process is killed while it sends a result, the executor waits for
the rest for ever, since it holds the other end of the pipe open itself.
"""

import atexit
import contextlib
import itertools
import os
import pickle
import re
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from math import prod
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from queue import PriorityQueue
from typing import Any

import torch
from torch import Tensor

from rec_experiments.common.batch import Rollouts
from rec_experiments.common.distributed import memory_of
from rec_experiments.common.errors import STOPPING, UserError
from rec_experiments.datasets.verifiers.verifier_pool import die_with_parent
from rec_experiments.rollout.worker import (
    LocalWorker,
    PendingRollouts,
    RolloutRequest,
    Snapshot,
    Weights,
)

Build = Callable[[], LocalWorker]

GRACE = 5.0  # seconds for the process to end by itself: a batch, verifiers, an engine
# A terminal or a cluster sends these to all processes of a run; the trainer alone handles them.
SIGNALS = {signal.SIGINT, *STOPPING, signal.SIGUSR2}
ALIGNMENT = 64  # bytes, as torch allocates
# What torchrun tells a rank. The process that draws is none: vLLM would look for the others, and a
# process group of its own would wait for them.
OF_RANKS = re.compile(
    r"((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_.*)"
)


NOTHING: Any = None  # the rollouts of a rank for which another one draws


class WorkerLost(RuntimeError):
    """The worker process died or hangs."""


STOP, EVALUATE, TRAIN = range(3)  # priorities of orders, the first goes first

Places = dict[str, tuple[torch.dtype, int, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Room for weights in one block of shared memory, which has no name: it cannot be left behind,
    and takes one file descriptor.

    places: of each weight its dtype, its first byte and its shape. Tied weights share their place.
    """

    block: Tensor
    places: Places

    @classmethod
    def like(cls, weights: Weights, dtype: torch.dtype | None) -> "SharedWeights":
        """Raises UserError if there is too little shared memory. dtype: None for the weights'."""
        size = 0
        places: Places = {}
        first: dict[Any, int] = {}
        for name, tensor in weights.items():
            start = first.setdefault(memory_of(tensor), size)
            own = dtype or tensor.dtype
            places[name] = own, start, tuple(tensor.shape)
            nbytes = tensor.numel() * own.itemsize
            size = max(size, start + -(-nbytes // ALIGNMENT) * ALIGNMENT)
        try:
            return cls(torch.empty(size, dtype=torch.uint8).share_memory_(), places)
        except RuntimeError as error:
            raise UserError(
                f"pipeline=overlap: no room for {2 * size / 1e9:.1f} GB of weights in shared "
                "memory (/dev/shm); allow more, or use pipeline=sequential"
            ) from error

    def tensors(self) -> Weights:
        return {
            name: self.block[start : start + prod(shape) * dtype.itemsize].view(dtype).view(shape)
            for name, (dtype, start, shape) in self.places.items()
        }


@dataclass(slots=True)
class Slot:
    """Shared memory as the trainer sees it: the version in it, and the answers it is needed for."""

    index: int
    tensors: Weights
    version: int | None = None
    answers: list[Future] = field(default_factory=list)


class RemoteWorker:
    """A `LocalWorker` in another process. Implements `RolloutWorker`.

    build: makes the worker there; it must be importable. weights: the layout of all weights to
    come. dtype: in which it gets them, None for their own. ahead: see `RolloutWorker`. environment:
    variables of the other process. versions: the most that one draw is made from.

    Raises what `build` raises. Methods raise what the other process raises, with its traceback in a
    note, or WorkerLost if it dies or does not answer within `timeout` seconds. The process ends
    when this one does, even by SIGKILL.
    """

    def __init__(
        self,
        build: Build,
        weights: Weights,
        *,
        ahead: int | None,
        timeout: float,
        environment: dict[str, str],
        versions: int = 1,
        dtype: torch.dtype | None = None,
    ):
        self.ahead, self.timeout, self.dtype = ahead, timeout, dtype
        shared = [SharedWeights.like(weights, dtype) for _ in range(versions + 1)]
        # The spare one, then those in use, the current one last.
        self._slots = deque(Slot(i, part.tensors()) for i, part in enumerate(shared))
        context = get_context("spawn")  # a fork is not safe with torch's threads and CUDA
        self._connection, theirs = context.Pipe()
        arguments = (build, theirs, shared, environment)
        self._process = context.Process(target=serve, args=arguments)
        with _signals_blocked():
            self._process.start()
        theirs.close()
        atexit.register(self._process.kill)  # an exit without `close` would wait for the process
        self._orders: PriorityQueue[tuple[int, int, str, Any, Future]] = PriorityQueue()
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._exchange, daemon=True)
        self._thread.start()
        try:
            self._result(self._order(TRAIN, "build"))
        except BaseException:
            self.close()
            raise

    def update_weights(self, snapshot: Snapshot) -> Snapshot:
        slot = self._fill_spare(snapshot)
        self._slots.rotate(-1)
        if snapshot.base or self.dtype:  # the slot does not hold all of it
            return snapshot.copy()
        return Snapshot(snapshot.version, slot.tensors)

    def submit(
        self, snapshots: Sequence[Snapshot], requests: list[RolloutRequest]
    ) -> list[PendingRollouts]:
        held = {slot.version: slot for slot in list(self._slots)[1:]}
        slots = [(held[snapshot.version], snapshot.first_token) for snapshot in snapshots]
        answer = self._order_on(slots, TRAIN, "draw", requests)
        return [partial(self._draw, answer, n) for n in range(len(requests))]

    def answer(self, snapshot: Snapshot, request: RolloutRequest) -> Rollouts:
        """Made before all that is submitted, except the order that is being worked on."""
        current = self._slots[-1]
        slot = current if snapshot.version == current.version else self._fill_spare(snapshot)
        return self._result(self._order_on([(slot, 0)], EVALUATE, "answer", request))

    def close(self) -> None:
        """End the other process, by force after GRACE seconds."""
        self._order(STOP, "stop")
        self._process.join(GRACE)
        self._process.kill()
        self._process.join()
        self._thread.join()
        self._connection.close()
        atexit.unregister(self._process.kill)

    def _fill_spare(self, snapshot: Snapshot) -> Slot:
        """Copy the weights into the spare slot, once all orders on it are answered."""
        slot = self._slots[0]
        if slot.version != snapshot.version:
            for answer in slot.answers:
                self._result(answer)
            for name, tensor in snapshot.whole().items():
                slot.tensors[name].copy_(tensor)
            slot.version = snapshot.version
        return slot

    def _order_on(
        self, slots: list[tuple[Slot, int]], priority: int, method: str, request: Any
    ) -> Future:
        """Call a method of the worker with the weights of slots, each with its first token."""
        places = [(slot.version, slot.index, start) for slot, start in slots]
        answer = self._order(priority, method, places, request)
        for slot, _ in slots:
            slot.answers = [*(each for each in slot.answers if not each.done()), answer]
        return answer

    def _order(self, priority: int, method: str, *arguments: Any) -> Future:
        answer: Future = Future()
        self._orders.put((priority, next(self._numbers), method, arguments, answer))
        return answer

    def _draw(self, answer: Future, number: int) -> Rollouts:
        return self._result(answer)[number]

    def _result(self, answer: Future) -> Any:
        try:
            return answer.result(self.timeout)
        except TimeoutError:
            if answer.done():  # it is the other process's
                raise
            self._process.kill()
            raise WorkerLost(
                f"the process that draws batches gave no answer for {self.timeout:g} s "
                "(pipeline.timeout); the same command resumes the run"
            ) from None

    def _exchange(self) -> None:
        """Body of the thread."""
        while (order := self._orders.get())[0] != STOP:
            *_, method, arguments, answer = order
            try:
                self._connection.send((method, arguments))
                # Its children may hold the pipe open, so the pipe alone does not tell that it died.
                if self._connection not in wait([self._connection, self._process.sentinel]):
                    raise EOFError
                error, result = pickle.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                error, result = self._lost(), None
            except Exception as unsent:  # as of an order that cannot be pickled
                error, result = unsent, None
            if error:
                answer.set_exception(error)
            else:
                answer.set_result(result)
        with contextlib.suppress(OSError):
            self._connection.send(("stop", ()))

    def _lost(self) -> WorkerLost:
        self._process.join(GRACE)
        code = self._process.exitcode or 0
        how = f"signal {-code}, {signal.strsignal(-code)}" if code < 0 else f"exit code {code}"
        return WorkerLost(
            f"the process that draws batches died ({how}); the same command resumes the run"
        )


class Bystander:
    """The worker of a rank for which rank 0 draws: it gathers weights whenever the `RemoteWorker`
    of rank 0 does, and keeps its own part of those that a checkpoint needs. Implements
    `RolloutWorker`; its rollouts are NOTHING."""

    def __init__(self, ahead: int | None, versions: int):
        self.ahead = ahead
        self._versions: deque[int | None] = deque([None] * (versions + 1))  # as in its slots

    def update_weights(self, snapshot: Snapshot) -> Snapshot:
        self._gather(snapshot)
        self._versions.rotate(-1)
        return snapshot.copy()

    def submit(
        self, snapshots: Sequence[Snapshot], requests: list[RolloutRequest]
    ) -> list[PendingRollouts]:
        return [lambda: NOTHING] * len(requests)

    def answer(self, snapshot: Snapshot, request: RolloutRequest) -> Rollouts:
        if snapshot.version != self._versions[-1]:
            self._gather(snapshot)
        return NOTHING

    def close(self) -> None:
        """There is no process to stop."""

    def _gather(self, snapshot: Snapshot) -> None:
        if self._versions[0] != snapshot.version:
            for _ in snapshot.whole().values():
                pass
            self._versions[0] = snapshot.version


def serve(
    build: Build,
    connection: Connection,
    shared: list[SharedWeights],
    environment: dict[str, str],
) -> None:
    """Body of the other process: build a worker and call its methods as ordered."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    for name in filter(OF_RANKS.fullmatch, [*os.environ]):
        del os.environ[name]
    os.environ.update(environment)
    die_with_parent(os.getpid())
    parent = parent_process()
    if parent is None or not parent.is_alive():
        return  # it died while this process was starting
    slots = [part.tensors() for part in shared]
    worker: Any = None
    with contextlib.suppress(EOFError, OSError):  # the trainer has ended
        while (order := connection.recv()) != ("stop", ()):
            error = result = None
            try:
                match order:
                    case "build", _:
                        worker = build()
                    case method, (places, request):
                        held = [
                            Snapshot(version, slots[i], first_token=first)
                            for version, i, first in places
                        ]
                        result = getattr(worker, method)(
                            held if method == "draw" else held[0], request
                        )
            except Exception as raised:
                error = _portable(raised)
            # Not `send`, which would share each tensor through a file descriptor of its own.
            connection.send_bytes(pickle.dumps((error, result)))
    if worker is not None:
        worker.close()


def _portable(error: Exception) -> Exception:
    """The error with its traceback as a note; a RuntimeError if it cannot be pickled."""
    note = f"In the process that draws batches:\n{traceback.format_exc()}"
    error.add_note(note)
    try:
        return pickle.loads(pickle.dumps(error))
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        plain.add_note(note)
        return plain


@contextlib.contextmanager
def _signals_blocked() -> Iterator[None]:
    """A process started inside gets no SIGNALS until it unblocks them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
