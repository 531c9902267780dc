"""Batches in order for the trainer, each drawn from the version that the schedule names."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from rec_experiments import rng
from rec_experiments.distributed import ALONE, World
from rec_experiments.rollout.order import problems_of
from rec_experiments.rollout.packed import pack, unpack
from rec_experiments.rollout.replay import ReplayBuffer
from rec_experiments.rollout.schedule import Schedule
from rec_experiments.rollout.worker import (
    PendingRollouts,
    RolloutRequest,
    RolloutWorker,
    Snapshot,
    given,
)
from rec_experiments.types import Problem, Rollouts, SampleKey


@dataclass(kw_only=True)
class RolloutManager:
    """Batches in order, made of draws, each from the version that the schedule names.

    The trainer calls `take(batch)` before its first update on a batch and `reach(batches)` after
    its last. A draw is submitted when it is needed, or up to `worker.ahead` draws earlier, or, at
    the latest, just before the weights it is due from are replaced. Nothing is discarded, nothing
    is drawn twice, and at most max(ahead + bundle - 1, interval + offset - 1) draws are pending
    after `reach`, besides the `buffer.window` last ones, which are kept for replay. Each rank draws
    its share of a draw's groups; all ranks take the whole batch.

    Draws of one version are made in bundles, for speed. What is sampled beside a response reaches
    its last bits, so which draws are bundled depends on the schedule alone. A run that goes on in
    the midst of a bundle draws it again as a whole.

    batches: the most that the run may train on. bundle: most draws of one.
    """

    worker: RolloutWorker
    schedule: Schedule
    buffer: ReplayBuffer
    problems: list[Problem]
    seed: int
    batches: int
    bundle: int
    batch_size: int
    group_size: int
    temperature: float
    shuffle: bool
    world: World = ALONE

    def __post_init__(self) -> None:
        self.next_draw = 0
        self.pending: deque[tuple[int, PendingRollouts]] = deque()
        self.kept: dict[int, Rollouts] = {}  # drawn, and still good for a batch to come
        self.behavior: Snapshot | None = None  # what draws are submitted from
        self.reached = 0  # batches that its policy had been trained on
        self.waited = 0.0

    def reach(self, batches: int, version: int, model: torch.nn.Module) -> None:
        """The policy has been trained on so many batches. version: in so many gradient steps."""
        if not self.schedule.draws_from(batches):
            return
        with self._standing_still():
            while self.next_draw < self.batches and self.schedule.version(self.next_draw) < batches:
                self._submit()
            self.behavior = self.worker.hold(Snapshot.of(model, version))
            self.reached = batches
            self._submit_ahead()

    def take(self, batch: int) -> Rollouts:
        """Batch number `batch`.

        Its seconds, `redrawn` and `drawn` are those of its fresh draw; seconds["wait"] is how long
        training stood still for rollouts since the last batch.
        """
        with self._standing_still():
            while self.next_draw <= batch:
                self._submit()
            while self.pending and self.pending[0][0] <= batch:
                draw, waiting = self.pending.popleft()
                self.kept[draw] = Rollouts.joined(self.world.gather(waiting()), draw)
            self._submit_ahead()
        portions = self.buffer.portions(batch, self.batch_size, self.seed)
        parts = [self.kept[portion.draw].of_groups(portion.groups) for portion in portions]
        fresh = self.kept[batch]
        self.kept = {d: r for d, r in self.kept.items() if d > batch - self.buffer.window}
        seconds, self.waited = {**fresh.seconds, "wait": self.waited}, 0.0
        rollouts = Rollouts.joined(parts, batch)
        return replace(rollouts, seconds=seconds, redrawn=fresh.redrawn, drawn=fresh.drawn)

    def _submit_ahead(self) -> None:
        assert self.behavior is not None
        while (
            self.next_draw < self.batches
            and self.schedule.version(self.next_draw) == self.reached
            and (self.worker.ahead is None or len(self.pending) < self.worker.ahead)
        ):
            self._submit()

    def _submit(self) -> None:
        """The bundle of the next draw, without those that have been taken from it."""
        assert self.behavior is not None
        assert self.reached == self.schedule.version(self.next_draw)
        draws = self.schedule.draws(self.reached, self.batches)
        start = self.next_draw - (self.next_draw - draws.start) % self.bundle
        bundle = range(start, min(start + self.bundle, draws.stop))
        waiting = self.worker.submit(self.behavior, [self._request(draw) for draw in bundle])
        self.pending += [
            (draw, of_draw)
            for draw, of_draw in zip(bundle, waiting, strict=True)
            if draw >= self.next_draw
        ]
        self.next_draw = bundle.stop

    def _request(self, draw: int) -> RolloutRequest:
        """This rank's share of a draw."""
        size, total = self.buffer.fresh(self.batch_size), len(self.problems)
        numbers = problems_of(draw, size, total, self.seed, self.shuffle)
        keys = [
            [SampleKey(self.seed, rng.TRAIN, draw, group, k) for k in range(self.group_size)]
            for group in range(size)
        ]
        spare = [self._spare(draw, group) for group in range(size)]
        mine = self.world.share(size)
        problems = [self.problems[number] for number in numbers[mine]]
        return RolloutRequest(problems, keys[mine], self.temperature, spare[mine])

    def _spare(self, draw: int, group: int) -> list[Problem]:
        """What a group is drawn from where its rewards are all equal, one for each attempt."""
        if not self.buffer.redraws:
            return []
        named = rng.generator(self.seed, rng.REDRAW, draw, group)
        numbers = named.integers(len(self.problems), size=self.buffer.redraws)
        return [self.problems[number] for number in numbers]

    @contextlib.contextmanager
    def _standing_still(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.waited += time.perf_counter() - started

    def state(self) -> dict:
        """Everything a resumed run needs, in plain types, and the same wherever batches are drawn.

        Draws from weights that are gone are part of it, and those kept for replay. Those submitted
        ahead from the weights still held are not: they are drawn again, and come out the same. The
        weights are the held ones, not a copy: save them before the next `reach`.
        """
        assert self.behavior is not None
        with self._standing_still():
            gone = [
                pack(waiting())
                for draw, waiting in self.pending
                if self.schedule.version(draw) < self.reached
            ]
        return {
            "next_draw": self.next_draw - len(self.pending) + len(gone),
            "pending": gone,
            "kept": [pack(rollouts) for rollouts in self.kept.values()],
            "behavior": {"version": self.behavior.version, "weights": self.behavior.weights},
            "reached": self.reached,
        }

    def restore(self, state: dict) -> None:
        self.next_draw, self.reached = state["next_draw"], state["reached"]
        rollouts = [unpack(fields) for fields in state["pending"]]
        self.pending = deque((drawn.index, given(drawn)) for drawn in rollouts)
        kept = [unpack(fields) for fields in state["kept"]]
        self.kept = {drawn.index: drawn for drawn in kept}
        self.behavior = self.worker.hold(Snapshot(**state["behavior"]))
        self._submit_ahead()
