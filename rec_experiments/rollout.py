"""Drawing batches: prompts in, judged responses out, each batch from the version it is due from."""

import time
from collections import deque
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from rec_experiments import rng
from rec_experiments.data import problems_of
from rec_experiments.models import Codec
from rec_experiments.rescore import Rescorer
from rec_experiments.rewards.judge import Judge
from rec_experiments.sync import Schedule
from rec_experiments.types import Draw, Problem, Response, Rollouts, Sampler, Verdict

Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The weights of one policy version."""

    version: int
    weights: Weights

    @classmethod
    def of(cls, model: torch.nn.Module, version: int) -> "Snapshot":
        return cls(version, {name: t.detach().clone() for name, t in model.state_dict().items()})


class Actor:
    """Sampler, codec and verifier together: answers problems with the weights it is given.

    rescorer: computes the log-probabilities of training batches again, where that is asked for.
    """

    def __init__(
        self, sampler: Sampler, codec: Codec, judge: Judge, rescorer: Rescorer | None = None
    ):
        self.sampler, self.codec, self.judge = sampler, codec, judge
        self.rescorer = rescorer
        self._loaded: int | None = None

    def draw(
        self,
        snapshot: Snapshot,
        problems: list[Problem],
        draws: list[list[Draw]],
        temperature: float,
    ) -> Rollouts:
        """A batch to train on: `answer`, and what the trainer has to add to it."""
        rollouts = self.answer(snapshot, problems, draws, temperature)
        return self.rescorer(snapshot.weights, rollouts) if self.rescorer else rollouts

    def answer(
        self,
        snapshot: Snapshot,
        problems: list[Problem],
        draws: list[list[Draw]],
        temperature: float,
    ) -> Rollouts:
        """One response per draw, judged. Row order: problem by problem, draw by draw."""
        if self._loaded != snapshot.version:
            self.sampler.load(snapshot.weights)
            self._loaded = snapshot.version
        started = time.perf_counter()
        prompts = [self.codec.encode(problem.messages) for problem in problems]
        responses = self.sampler.sample(prompts, draws, temperature)
        sampled = time.perf_counter()
        rows = [
            (group, prompts[group], response)
            for group, of_problem in enumerate(responses)
            for response in of_problem
        ]
        verdicts = self.judge(
            [(self.codec.decode(r.tokens), problems[group].answer) for group, _, r in rows]
        )
        return Rollouts(
            index=draws[0][0].batch,
            version=snapshot.version,
            prompts=[prompt for _, prompt, _ in rows],
            responses=[response for _, _, response in rows],
            verdicts=verdicts,
            groups=[group for group, _, _ in rows],
            seconds={"rollout": sampled - started, "reward": time.perf_counter() - sampled},
        )


@dataclass(kw_only=True)
class RolloutFeed:
    """Batches in order, each drawn from the version that the schedule names.

    The trainer calls `reach(version)` after every gradient step and `take(step)` before the next.
    A batch is drawn when it is needed, or just before the weights it is due from are replaced:
    the sampler holds one version at a time, nothing is discarded, nothing is drawn twice.
    """

    actor: Actor
    schedule: Schedule
    problems: list[Problem]
    seed: int
    steps: int
    batch_size: int
    group_size: int
    temperature: float
    shuffle: bool

    def __post_init__(self) -> None:
        self.next_batch = 0
        self.pending: deque[Rollouts] = deque()
        self.behavior: Snapshot | None = None

    def reach(self, version: int, model: torch.nn.Module) -> None:
        """The policy has taken `version` gradient steps."""
        if self.schedule.draws_from(version):
            while self.next_batch < self.steps and self.schedule.version(self.next_batch) < version:
                self._draw()
            self.behavior = Snapshot.of(model, version)

    def take(self, step: int) -> Rollouts:
        """The batch that gradient step `step` consumes."""
        while self.next_batch <= step:
            self._draw()
        return self.pending.popleft()

    def _draw(self) -> None:
        batch = self.next_batch
        assert self.behavior is not None
        assert self.behavior.version == self.schedule.version(batch)
        numbers = problems_of(batch, self.batch_size, len(self.problems), self.seed, self.shuffle)
        draws = [
            [Draw(self.seed, rng.TRAIN, batch, group, k) for k in range(self.group_size)]
            for group in range(self.batch_size)
        ]
        problems = [self.problems[number] for number in numbers]
        self.pending.append(self.actor.draw(self.behavior, problems, draws, self.temperature))
        self.next_batch += 1

    def state(self) -> dict:
        """Everything a resumed run needs, in plain types."""
        behavior = self.behavior
        return {
            "next_batch": self.next_batch,
            "pending": [asdict(rollouts) for rollouts in self.pending],
            "behavior": behavior and {"version": behavior.version, "weights": behavior.weights},
        }

    def restore(self, state: dict) -> None:
        self.next_batch = state["next_batch"]
        self.pending = deque(_rollouts(fields) for fields in state["pending"])
        self.behavior = state["behavior"] and Snapshot(**state["behavior"])


def _rollouts(fields: dict) -> Rollouts:
    return Rollouts(
        **{
            **fields,
            "responses": [Response(**response) for response in fields["responses"]],
            "verdicts": [Verdict(**verdict) for verdict in fields["verdicts"]],
        }
    )
