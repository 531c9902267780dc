"""Drawing batches: prompts in, judged responses out, each batch from the version it is due from."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from rec_experiments import rng
from rec_experiments.codec import Codec
from rec_experiments.data import problems_of
from rec_experiments.distributed import ALONE, World, whole
from rec_experiments.rescore import Rescorer
from rec_experiments.rewards.judge import Isolated, Judge
from rec_experiments.sync import Schedule
from rec_experiments.types import (
    Draw,
    MultiTurnTask,
    Problem,
    Response,
    Rollouts,
    Sampler,
    Task,
    Verdict,
)

Weights = dict[str, Tensor]
Answer = Callable[[], Rollouts]  # waits until the batch is there


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The weights of one policy version, split among the ranks as the model is."""

    version: int
    weights: Weights

    @classmethod
    def of(cls, model: torch.nn.Module, version: int) -> "Snapshot":
        """Not a copy: the next gradient step changes it. `Drawer.hold` copies."""
        return cls(version, model.state_dict())

    def full(self) -> Weights:
        """All weights as plain tensors. Every rank must call it."""
        return {name: whole(tensor) for name, tensor in self.weights.items()}


@dataclass(frozen=True, slots=True)
class Request:
    """What to draw: one response for each draw of each problem."""

    problems: list[Problem]
    draws: list[list[Draw]]
    temperature: float


class Drawer(Protocol):
    """Where batches are drawn: here (`Actor`) or in another process (`pipeline.RemoteActor`)."""

    @property
    def ahead(self) -> int | None:
        """Batches to submit before they are needed; None for as many as the schedule allows."""

    def hold(self, snapshot: Snapshot) -> Snapshot:
        """A copy of the weights to submit batches from. It stays good until the next `hold`."""

    def submit(self, snapshot: Snapshot, request: Request) -> Answer:
        """Have a batch drawn from the snapshot that `hold` returned last."""

    def answer(self, snapshot: Snapshot, request: Request) -> Rollouts:
        """Draw a batch from any snapshot now, and wait for it."""

    def close(self) -> None:
        """Stop what was started for drawing."""


class Actor:
    """Sampler, codec, verifier and environment: answers problems with the weights it is given.

    Implements `Drawer`: a batch is drawn at the moment it is submitted.
    rescorer: computes the log-probabilities of training batches again, where that is asked for.
    """

    ahead = 0

    def __init__(
        self,
        sampler: Sampler,
        codec: Codec,
        judge: Judge,
        task: Task,
        rescorer: Rescorer | None = None,
    ):
        self.sampler, self.codec, self.judge, self.rescorer = sampler, codec, judge, rescorer
        self.conversation = task if isinstance(task, MultiTurnTask) else None
        self._loaded: int | None = None

    def hold(self, snapshot: Snapshot) -> Snapshot:
        weights = {name: tensor.clone() for name, tensor in snapshot.weights.items()}
        return replace(snapshot, weights=weights)

    def submit(self, snapshot: Snapshot, request: Request) -> Answer:
        return _given(self.draw(snapshot, request))

    def close(self) -> None:
        """Stop the verifier's processes, if it has any."""
        if isinstance(self.judge, Isolated):
            self.judge.close()

    def draw(self, snapshot: Snapshot, request: Request) -> Rollouts:
        """A batch to train on: `answer`, and what the trainer has to add to it."""
        rollouts = self.answer(snapshot, request)
        return self.rescorer(rollouts) if self.rescorer else rollouts

    def answer(self, snapshot: Snapshot, request: Request) -> Rollouts:
        """One response per draw, judged. Row order: problem by problem, draw by draw."""
        if self._loaded != snapshot.version:
            weights = snapshot.full()
            self.sampler.load(weights)
            if self.rescorer:
                self.rescorer.load(weights)
            self._loaded = snapshot.version
        started = time.perf_counter()
        problems = request.problems
        prompts = self.codec.encode_all([problem.messages for problem in problems])
        responses = self._respond(request, prompts)
        sampled = time.perf_counter()
        rows = [
            (group, prompts[group], response)
            for group, of_problem in enumerate(responses)
            for response in of_problem
        ]
        verdicts = self.judge([(self._outcome(r), problems[group].answer) for group, _, r in rows])
        return Rollouts(
            index=request.draws[0][0].batch,
            version=snapshot.version,
            prompts=[prompt for _, prompt, _ in rows],
            responses=[response for _, _, response in rows],
            verdicts=verdicts,
            groups=[group for group, _, _ in rows],
            seconds={"rollout": sampled - started, "reward": time.perf_counter() - sampled},
        )

    def _respond(self, request: Request, prompts: list[list[int]]) -> list[list[Response]]:
        """One response per draw, of one turn, or of several where the task replies to them.

        Every turn is prompted with the tokens before it as they are: text is never tokenised
        twice, so what is trained on is what was sampled. A later turn is sampled to the full length
        and then cut to what the trajectory has left.
        """
        draws, temperature = request.draws, request.temperature
        responses = self.sampler.sample(prompts, draws, temperature)
        task = self.conversation
        if task is None:
            return responses
        limit = task.max_response_tokens
        live = [(group, k) for group, named in enumerate(draws) for k in range(len(named))]
        for turn in range(1, task.max_turns):
            spoken_to = []
            for group, k in live:
                reply = self._reply(task, request.problems[group], responses[group][k])
                if reply is None:
                    continue
                responses[group][k] = responses[group][k].then(reply, limit)
                if len(responses[group][k].tokens) < limit:
                    spoken_to.append((group, k))
            live = spoken_to
            if not live:
                break
            written = self.sampler.sample(
                [prompts[group] + responses[group][k].tokens for group, k in live],
                [[replace(draws[group][k], turn=turn)] for group, k in live],
                temperature,
            )
            for (group, k), [response] in zip(live, written, strict=True):
                responses[group][k] = responses[group][k].then(response, limit)
        return responses

    def _reply(self, task: MultiTurnTask, problem: Problem, response: Response) -> Response | None:
        """The environment's turn after a response, or None where the trajectory ends."""
        if not response.finished:
            return None
        text = task.reply(problem, self.codec.turns(response))
        if text is None:
            return None
        tokens = self.codec.encode_reply(text)
        return Response(tokens, [0.0] * len(tokens), False, [False] * len(tokens))

    def _outcome(self, response: Response) -> str:
        """The text that the verifier judges."""
        if self.conversation is None:
            return self.codec.decode(response.tokens)
        return self.conversation.outcome(self.codec.turns(response))


@dataclass(kw_only=True)
class RolloutFeed:
    """Batches in order, each drawn from the version that the schedule names.

    The trainer calls `reach(version)` after every gradient step and `take(step)` before the next.
    A batch is submitted when it is needed, or up to `actor.ahead` batches earlier, or, at the
    latest, just before the weights it is due from are replaced. Nothing is discarded, nothing is
    drawn twice, and at most max(ahead, interval + offset - 1) batches are pending after `reach`.
    Each rank draws its share of a batch's groups; all ranks take the whole batch.
    """

    actor: Drawer
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
        self.pending: deque[tuple[int, Answer]] = deque()
        self.behavior: Snapshot | None = None
        self.waited = 0.0

    def reach(self, version: int, model: torch.nn.Module) -> None:
        """The policy has taken `version` gradient steps."""
        if not self.schedule.draws_from(version):
            return
        with self._standing_still():
            while self.next_batch < self.steps and self.schedule.version(self.next_batch) < version:
                self._submit()
            self.behavior = self.actor.hold(Snapshot.of(model, version))
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
            and (self.actor.ahead is None or len(self.pending) < self.actor.ahead)
        ):
            self._submit()

    def _submit(self) -> None:
        batch = self.next_batch
        assert self.behavior is not None
        assert self.behavior.version == self.schedule.version(batch)
        numbers = problems_of(batch, self.batch_size, len(self.problems), self.seed, self.shuffle)
        draws = [
            [Draw(self.seed, rng.TRAIN, batch, group, k) for k in range(self.group_size)]
            for group in range(self.batch_size)
        ]
        problems = [self.problems[number] for number in numbers]
        mine = self.world.share(self.batch_size)
        request = Request(problems[mine], draws[mine], self.temperature)
        self.pending.append((batch, self.actor.submit(self.behavior, request)))
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
        self.pending = deque((batch.index, _given(batch)) for batch in rollouts)
        self.behavior = self.actor.hold(Snapshot(**state["behavior"]))
        self._submit_ahead()


def _given(rollouts: Rollouts) -> Answer:
    """The answer that is there already."""
    return lambda: rollouts


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
