"""Drawing batches: prompts in, judged responses out, each batch from the version it is due from."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from rec_experiments.distributed import whole
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.recompute import LogprobRecomputer
from rec_experiments.rewards.verifier_pool import BatchVerifier, VerifierPool
from rec_experiments.types import (
    MultiTurnTask,
    Problem,
    Response,
    Rollouts,
    SampleKey,
    Sampler,
    Task,
)

Weights = dict[str, Tensor]
PendingRollouts = Callable[[], Rollouts]  # waits until the batch is there


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The weights of one policy version, split among the ranks as the model is."""

    version: int
    weights: Weights

    @classmethod
    def of(cls, model: torch.nn.Module, version: int) -> "Snapshot":
        """Not a copy: the next gradient step changes it. `RolloutWorker.hold` copies."""
        return cls(version, model.state_dict())

    def full(self) -> Weights:
        """All weights as plain tensors. Every rank must call it."""
        return {name: whole(tensor) for name, tensor in self.weights.items()}


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """What to draw: one response for each draw of each problem."""

    problems: list[Problem]
    draws: list[list[SampleKey]]
    temperature: float


class RolloutWorker(Protocol):
    """Where batches are drawn: here (`LocalWorker`) or in another process (`RemoteWorker`)."""

    @property
    def ahead(self) -> int | None:
        """Batches to submit before they are needed; None for as many as the schedule allows."""

    def hold(self, snapshot: Snapshot) -> Snapshot:
        """A copy of the weights to submit batches from. It stays good until the next `hold`."""

    def submit(self, snapshot: Snapshot, request: RolloutRequest) -> PendingRollouts:
        """Have a batch drawn from the snapshot that `hold` returned last."""

    def answer(self, snapshot: Snapshot, request: RolloutRequest) -> Rollouts:
        """Draw a batch from any snapshot now, and wait for it."""

    def close(self) -> None:
        """Stop what was started for drawing."""


class LocalWorker:
    """Sampler, chat, verifier and environment: answers problems with the weights it is given.

    Implements `RolloutWorker`: a batch is drawn at the moment it is submitted.
    recomputer: computes the log-probabilities of training batches again, where that is asked for.
    """

    ahead = 0

    def __init__(
        self,
        sampler: Sampler,
        chat: ChatTemplate,
        verifier: BatchVerifier,
        task: Task,
        recomputer: LogprobRecomputer | None = None,
    ):
        self.sampler, self.chat, self.verifier, self.recomputer = (
            sampler,
            chat,
            verifier,
            recomputer,
        )
        self.conversation = task if isinstance(task, MultiTurnTask) else None
        self._loaded: int | None = None

    def hold(self, snapshot: Snapshot) -> Snapshot:
        weights = {name: tensor.clone() for name, tensor in snapshot.weights.items()}
        return replace(snapshot, weights=weights)

    def submit(self, snapshot: Snapshot, request: RolloutRequest) -> PendingRollouts:
        return given(self.draw(snapshot, request))

    def close(self) -> None:
        """Stop the verifier's processes, if it has any."""
        if isinstance(self.verifier, VerifierPool):
            self.verifier.close()

    def draw(self, snapshot: Snapshot, request: RolloutRequest) -> Rollouts:
        """A batch to train on: `answer`, and what the trainer has to add to it."""
        rollouts = self.answer(snapshot, request)
        return self.recomputer(rollouts) if self.recomputer else rollouts

    def answer(self, snapshot: Snapshot, request: RolloutRequest) -> Rollouts:
        """One response per draw, judged. Row order: problem by problem, draw by draw."""
        if self._loaded != snapshot.version:
            weights = snapshot.full()
            self.sampler.load(weights)
            if self.recomputer:
                self.recomputer.load(weights)
            self._loaded = snapshot.version
        started = time.perf_counter()
        problems = request.problems
        prompts = self.chat.encode_all([problem.messages for problem in problems])
        responses = self._respond(request, prompts)
        sampled = time.perf_counter()
        rows = [
            (group, prompts[group], response)
            for group, of_problem in enumerate(responses)
            for response in of_problem
        ]
        verdicts = self.verifier(
            [(self._outcome(r), problems[group].answer) for group, _, r in rows]
        )
        return Rollouts(
            index=request.draws[0][0].batch,
            version=snapshot.version,
            prompts=[prompt for _, prompt, _ in rows],
            responses=[response for _, _, response in rows],
            verdicts=verdicts,
            groups=[group for group, _, _ in rows],
            seconds={"rollout": sampled - started, "reward": time.perf_counter() - sampled},
        )

    def _respond(self, request: RolloutRequest, prompts: list[list[int]]) -> list[list[Response]]:
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
        text = task.reply(problem, self.chat.turns(response))
        if text is None:
            return None
        tokens = self.chat.encode_reply(text)
        return Response(tokens, [0.0] * len(tokens), False, [False] * len(tokens))

    def _outcome(self, response: Response) -> str:
        """The text that the verifier judges."""
        if self.conversation is None:
            return self.chat.decode(response.tokens)
        return self.conversation.outcome(self.chat.turns(response))


def given(rollouts: Rollouts) -> PendingRollouts:
    """The answer that is there already."""
    return lambda: rollouts
