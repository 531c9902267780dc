"""Batches for the trainer, each drawn from the policy version that the schedule names."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from rec_experiments.common import rng
from rec_experiments.common.batch import Rollouts
from rec_experiments.common.distributed import ALONE, World, copied_to_host
from rec_experiments.common.problems import Problem
from rec_experiments.policy.lora import Base
from rec_experiments.rollout.replay import ReplayBuffer, problems_of
from rec_experiments.rollout.schedule import Schedule
from rec_experiments.rollout.worker import (
    PendingRollouts,
    RolloutRequest,
    RolloutWorker,
    Snapshot,
    Weights,
    ready,
    sample_keys,
)


@dataclass(kw_only=True)
class RolloutManager:
    """Has rollouts drawn in the order of the schedule and makes batches of them.

    The trainer calls `get_batch(batch)` before its first update on a batch and `update_weights`
    after its last. A draw is submitted when it is needed, or up to `worker.ahead` draws earlier,
    and at the latest just before the weights it must come from are replaced. No draw is discarded
    or made twice, and at most max(ahead + bundle - 1, interval + offset - 1) are pending after
    `update_weights`. The last `buffer.window` draws are kept for replay. Each rank draws its share
    of a draw's groups; every rank gets the whole batch.

    Draws of one version are made in bundles, for speed. The sequences sampled together affect the
    last bits of each, so bundles depend on the schedule alone: a run that resumes in the middle of
    a bundle draws all of it again.

    batches: the most that the run may train on. bundle: the most draws made together.
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
        self.pending: deque[tuple[int, PendingRollouts]] = deque()  # of all ranks
        self.drawn: dict[int, Rollouts] = {}  # the draws that this or a later batch may use
        self.behavior: Snapshot | None = None  # the newest weights that draws are submitted from
        self.trained = 0  # batches that these weights had been trained on
        # Older weights that unfinished responses still need, keyed by batch.
        self.earlier: dict[int, Snapshot] = {}
        self.waited = 0.0

    def update_weights(self, batches: int, version: int, model: torch.nn.Module) -> None:
        """The policy has now been trained on `batches` batches, in `version` gradient steps."""
        if not self.schedule.draws_from(batches):
            return
        with self._timed_wait():
            while self.next_draw < self.batches and self.schedule.version(self.next_draw) < batches:
                self._submit()
            self._set_weights(batches, Snapshot.of(model, version))
            self._submit_ahead()

    def _set_weights(self, batches: int, snapshot: Snapshot) -> None:
        if self.behavior is not None:
            self.earlier[self.trained] = self.behavior
        oldest = batches - self.schedule.most_versions
        self.earlier = {n: each for n, each in self.earlier.items() if n > oldest}
        self.behavior, self.trained = self.worker.update_weights(snapshot), batches

    def get_batch(self, batch: int) -> Rollouts:
        """Batch number `batch`.

        Its seconds, `redrawn` and `drawn` are those of the fresh draw in it. seconds["wait"] is how
        long training has waited for rollouts since the last batch.
        """
        with self._timed_wait():
            while self.next_draw <= batch:
                self._submit()
            while self.pending and self.pending[0][0] <= batch:
                draw, result = self.pending.popleft()
                self.drawn[draw] = result()
            self._submit_ahead()
        portions = self.buffer.portions(batch, self.batch_size, self.seed)
        parts = [self.drawn[portion.draw].of_groups(portion.groups) for portion in portions]
        fresh = self.drawn[batch]
        self.drawn = {d: r for d, r in self.drawn.items() if d > batch - self.buffer.window}
        seconds, self.waited = {**fresh.seconds, "wait": self.waited}, 0.0
        rollouts = Rollouts.of_parts(parts, batch)
        return replace(rollouts, seconds=seconds, redrawn=fresh.redrawn, drawn=fresh.drawn)

    def _submit_ahead(self) -> None:
        assert self.behavior is not None
        while (
            self.next_draw < self.batches
            and self.schedule.version(self.next_draw) == self.trained
            and (self.worker.ahead is None or len(self.pending) < self.worker.ahead)
        ):
            self._submit()

    def _submit(self) -> None:
        """Submit the bundle of the next draw; draws of it that were taken earlier are ignored."""
        assert self.behavior is not None
        assert self.trained == self.schedule.version(self.next_draw)
        bundle = self.schedule.bundle_of(self.next_draw, self.bundle, self.batches)
        versions = {**self.earlier, self.trained: self.behavior}
        segments = self.schedule.segments(self.next_draw)
        snapshots = [
            replace(versions[version], first_token=first_token) for first_token, version in segments
        ]
        results = self.worker.submit(snapshots, [self._request(draw) for draw in bundle])
        self.pending += [
            (draw, partial(self._of_all_ranks, draw, result))
            for draw, result in zip(bundle, results, strict=True)
            if draw >= self.next_draw
        ]
        self.next_draw = bundle.stop

    def _of_all_ranks(self, draw: int, result: PendingRollouts) -> Rollouts:
        rollouts = Rollouts.of_parts(self.world.gather(result()), draw)
        if self.schedule.most_versions == 1:
            return rollouts
        version_BT = rollouts.version_BX.expand_as(rollouts.token_BT)  # also of a first batch
        return replace(rollouts, version_BX=version_BT)

    def _request(self, draw: int) -> RolloutRequest:
        """This rank's share of a draw."""
        size, total = self.buffer.fresh(self.batch_size), len(self.problems)
        numbers = problems_of(draw, size, total, self.seed, self.shuffle)
        groups = range(size)[self.world.share(size)]
        return RolloutRequest(
            [self.problems[numbers[group]] for group in groups],
            sample_keys(self.seed, rng.TRAIN, draw, groups, self.group_size),
            self.temperature,
            [self._spare(draw, group) for group in groups],
        )

    def _spare(self, draw: int, group: int) -> list[Problem]:
        """The problems that replace a group's while its rewards are all equal."""
        if not self.buffer.redraws:
            return []
        named = rng.generator(self.seed, rng.REDRAW, draw, group)
        numbers = named.integers(len(self.problems), size=self.buffer.redraws)
        return [self.problems[number] for number in numbers]

    @contextlib.contextmanager
    def _timed_wait(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.waited += time.perf_counter() - started

    def state(self) -> dict[str, Any]:
        """What a resumed run needs besides the weights of `behavior` and `earlier`; equal on all
        ranks and in every pipeline. Every rank must call it.

        It holds pending draws only if the weights they come from are no longer kept. The others are
        drawn again, with the same result.
        """
        assert self.behavior is not None
        with self._timed_wait():
            pending = [
                result().state()
                for draw, result in self.pending
                if self.schedule.version(draw) < self.trained
            ]
        return {
            "next_draw": self.next_draw - len(self.pending) + len(pending),
            "pending": pending,
            "drawn": [rollouts.state() for rollouts in self.drawn.values()],
            "version": self.behavior.version,
            "trained": self.trained,
            "earlier": {batches: each.version for batches, each in self.earlier.items()},
        }

    def restore(
        self,
        state: dict[str, Any],
        weights: Weights,
        earlier: Mapping[int, Weights],
        base: Base | None = None,
    ) -> None:
        """The inverse of `state`. weights: those of `behavior`. earlier: those of `earlier`. base:
        of all of them."""
        self.next_draw = state["next_draw"]
        kept = copied_to_host({name: state[name] for name in ("pending", "drawn")})
        pending = [Rollouts(**fields) for fields in kept["pending"]]
        self.pending = deque((rollouts.index, ready(rollouts)) for rollouts in pending)
        drawn = [Rollouts(**fields) for fields in kept["drawn"]]
        self.drawn = {rollouts.index: rollouts for rollouts in drawn}
        for batches, version in state.get("earlier", {}).items():
            self._set_weights(batches, Snapshot(version, earlier[batches], base))
        self._set_weights(state["trained"], Snapshot(state["version"], weights, base))
        self._submit_ahead()
