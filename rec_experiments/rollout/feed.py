"""Batches in order for the trainer, each drawn from the version that the schedule names."""

import contextlib
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import torch

from rec_experiments import rng
from rec_experiments.distributed import ALONE, World
from rec_experiments.rollout.order import problems_of
from rec_experiments.rollout.schedule import Schedule
from rec_experiments.rollout.worker import (
    PendingRollouts,
    RolloutRequest,
    RolloutWorker,
    Snapshot,
    given,
)
from rec_experiments.types import Problem, Response, Rollouts, SampleKey, Verdict


@dataclass(kw_only=True)
class RolloutFeed:
    """Batches in order, each drawn from the version that the schedule names.

    The trainer calls `reach(version)` after every gradient step and `take(step)` before the next.
    A batch is submitted when it is needed, or up to `worker.ahead` batches earlier, or, at the
    latest, just before the weights it is due from are replaced. Nothing is discarded, nothing is
    drawn twice, and at most max(ahead, interval + offset - 1) batches are pending after `reach`.
    Each rank draws its share of a batch's groups; all ranks take the whole batch.
    """

    worker: RolloutWorker
    schedule: Schedule
    problems: list[Problem]
    seed: int
    steps: int
    batch_size: int
    group_size: int
    temperature: float
    shuffle: bool
    world: World = ALONE

    def __post_init__(self) -> None:
        self.next_batch = 0
        self.pending: deque[tuple[int, PendingRollouts]] = deque()
        self.behavior: Snapshot | None = None
        self.waited = 0.0

    def reach(self, version: int, model: torch.nn.Module) -> None:
        """The policy has taken `version` gradient steps."""
        if not self.schedule.draws_from(version):
            return
        with self._standing_still():
            while self.next_batch < self.steps and self.schedule.version(self.next_batch) < version:
                self._submit()
            self.behavior = self.worker.hold(Snapshot.of(model, version))
            self._submit_ahead()

    def take(self, step: int) -> Rollouts:
        """The batch that gradient step `step` consumes.

        Its seconds["wait"] is how long training stood still for rollouts since the last batch.
        """
        with self._standing_still():
            while self.next_batch <= step:
                self._submit()
            _, answer = self.pending.popleft()
            rollouts = joined(self.world.gather(answer()))
            self._submit_ahead()
        seconds, self.waited = {**rollouts.seconds, "wait": self.waited}, 0.0
        return replace(rollouts, seconds=seconds)

    def _submit_ahead(self) -> None:
        assert self.behavior is not None
        while (
            self.next_batch < self.steps
            and self.schedule.version(self.next_batch) == self.behavior.version
            and (self.worker.ahead is None or len(self.pending) < self.worker.ahead)
        ):
            self._submit()

    def _submit(self) -> None:
        batch = self.next_batch
        assert self.behavior is not None
        assert self.behavior.version == self.schedule.version(batch)
        numbers = problems_of(batch, self.batch_size, len(self.problems), self.seed, self.shuffle)
        draws = [
            [SampleKey(self.seed, rng.TRAIN, batch, group, k) for k in range(self.group_size)]
            for group in range(self.batch_size)
        ]
        problems = [self.problems[number] for number in numbers]
        mine = self.world.share(self.batch_size)
        request = RolloutRequest(problems[mine], draws[mine], self.temperature)
        self.pending.append((batch, self.worker.submit(self.behavior, request)))
        self.next_batch += 1

    @contextlib.contextmanager
    def _standing_still(self) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.waited += time.perf_counter() - started

    def state(self) -> dict:
        """Everything a resumed run needs, in plain types, and the same wherever batches are drawn.

        Batches from weights that are gone are part of it. Those submitted ahead from the weights
        still held are not: they are drawn again, and come out the same. The weights are the held
        ones, not a copy: save them before the next `reach`.
        """
        assert self.behavior is not None
        with self._standing_still():
            kept = [
                asdict(answer())
                for batch, answer in self.pending
                if self.schedule.version(batch) < self.behavior.version
            ]
        version, weights = self.behavior.version, self.behavior.weights
        return {
            "next_batch": self.next_batch - len(self.pending) + len(kept),
            "pending": kept,
            "behavior": {"version": version, "weights": weights},
        }

    def restore(self, state: dict) -> None:
        self.next_batch = state["next_batch"]
        rollouts = [_rollouts(fields) for fields in state["pending"]]
        self.pending = deque((batch.index, given(batch)) for batch in rollouts)
        self.behavior = self.worker.hold(Snapshot(**state["behavior"]))
        self._submit_ahead()


def joined(parts: list[Rollouts]) -> Rollouts:
    """The ranks' shares of one batch as one, in order. Its seconds are those of the slowest."""
    groups: list[int] = []
    for part in parts:
        before = groups[-1] + 1 if groups else 0
        groups += [before + group for group in part.groups]
    return Rollouts(
        index=parts[0].index,
        version=parts[0].version,
        prompts=[prompt for part in parts for prompt in part.prompts],
        responses=[response for part in parts for response in part.responses],
        verdicts=[verdict for part in parts for verdict in part.verdicts],
        groups=groups,
        seconds={name: max(p.seconds[name] for p in parts) for name in parts[0].seconds},
        recomputed=[row for part in parts for row in part.recomputed or []] or None,
    )


def _rollouts(fields: dict) -> Rollouts:
    return Rollouts(
        **{
            **fields,
            "responses": [Response(**response) for response in fields["responses"]],
            "verdicts": [Verdict(**verdict) for verdict in fields["verdicts"]],
        }
    )
