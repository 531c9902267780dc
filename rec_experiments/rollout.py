"""Drawing batches: prompts in, judged responses out, each batch from the version it is due from."""

import time
from collections import deque
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from rec_experiments import rng
from rec_experiments.data import problems_of
from rec_experiments.models import Codec
from rec_experiments.rewards.judge import Judge
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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The weights of one policy version."""

    version: int
    weights: Weights

    @classmethod
    def of(cls, model: torch.nn.Module, version: int) -> "Snapshot":
        return cls(version, {name: t.detach().clone() for name, t in model.state_dict().items()})


class Actor:
    """Sampler, codec, verifier and environment: answers problems with the weights it is given."""

    def __init__(self, sampler: Sampler, codec: Codec, judge: Judge, task: Task):
        self.sampler, self.codec, self.judge, self.task = sampler, codec, judge, task
        self._loaded: int | None = None

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
        responses = self._respond(problems, prompts, draws, temperature)
        sampled = time.perf_counter()
        rows = [
            (group, prompts[group], response)
            for group, of_problem in enumerate(responses)
            for response in of_problem
        ]
        verdicts = self.judge([(self._outcome(r), problems[group].answer) for group, _, r in rows])
        return Rollouts(
            index=draws[0][0].batch,
            version=snapshot.version,
            prompts=[prompt for _, prompt, _ in rows],
            responses=[response for _, _, response in rows],
            verdicts=verdicts,
            groups=[group for group, _, _ in rows],
            seconds={"rollout": sampled - started, "reward": time.perf_counter() - sampled},
        )

    def _respond(
        self,
        problems: list[Problem],
        prompts: list[list[int]],
        draws: list[list[Draw]],
        temperature: float,
    ) -> list[list[Response]]:
        """One response per draw, of one turn, or of several where the task replies to them.

        Every turn is prompted with the tokens before it as they are: text is never tokenised
        twice, so what is trained on is what was sampled. A later turn is sampled to the full length
        and then cut to what the trajectory has left.
        """
        responses = self.sampler.sample(prompts, draws, temperature)
        if not isinstance(self.task, MultiTurnTask):
            return responses
        limit = self.task.max_response_tokens
        live = [(group, k) for group, named in enumerate(draws) for k in range(len(named))]
        for turn in range(1, self.task.max_turns):
            spoken_to = []
            for group, k in live:
                reply = self._reply(self.task, problems[group], responses[group][k])
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
        if isinstance(self.task, MultiTurnTask):
            return self.task.outcome(self.codec.turns(response))
        return self.codec.decode(response.tokens)


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
        self.pending.append(self.actor.answer(self.behavior, problems, draws, self.temperature))
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
