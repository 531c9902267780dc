"""Drawing batches: prompts in, judged responses out, each batch from the version it is due from."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from rec_experiments.datasets.verifiers.verifier_pool import BatchVerifier, VerifierPool
from rec_experiments.distributed import kept, whole
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.recompute import LogprobRecomputer
from rec_experiments.rollout.reward import RewardAdjustment
from rec_experiments.types import (
    Dataset,
    MultiTurnDataset,
    Problem,
    Response,
    Rollouts,
    SampleKey,
    Sampler,
    VerifierResult,
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

    def kept(self) -> "Snapshot":
        """A copy, which training does not change."""
        return Snapshot(self.version, kept(self.weights))

    def full(self) -> Mapping[str, Tensor]:
        """All weights as plain tensors, each made whole when it is read. Every rank must read the
        same ones in the same order."""
        return WholeWeights(self.weights)


class WholeWeights(Mapping[str, Tensor]):
    """Weights that may be split among the ranks, whole one at a time."""

    def __init__(self, weights: Weights):
        self._weights = weights

    def __getitem__(self, name: str) -> Tensor:
        return whole(self._weights[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """What to draw: one response for each key of each problem.

    spare: of each problem's group, the problems that it is drawn from instead, one after the other,
    while its rewards are all equal.
    """

    problems: list[Problem]
    keys: list[list[SampleKey]]
    temperature: float
    spare: list[list[Problem]] = field(default_factory=list)

    @classmethod
    def joined(cls, parts: "list[RolloutRequest]") -> "RolloutRequest":
        """All that these ask for at one temperature, in order. Spare problems are left out."""
        return cls(
            [problem for part in parts for problem in part.problems],
            [keys for part in parts for keys in part.keys],
            parts[0].temperature,
        )

    def redrawn(self, groups: list[int], attempt: int) -> "RolloutRequest":
        """The request for these groups at their attempt number `attempt`, from 1."""
        return RolloutRequest(
            [self.spare[group][attempt - 1] for group in groups],
            [[replace(key, attempt=attempt) for key in self.keys[group]] for group in groups],
            self.temperature,
        )


class RolloutWorker(Protocol):
    """Where batches are drawn: here (`LocalWorker`) or in another process (`RemoteWorker`)."""

    @property
    def ahead(self) -> int | None:
        """Batches to submit before they are needed; None for as many as the schedule allows."""

    def hold(self, snapshot: Snapshot) -> Snapshot:
        """A copy of the weights to submit batches from. It stays good until the next `hold`."""

    def submit(self, snapshot: Snapshot, requests: list[RolloutRequest]) -> list[PendingRollouts]:
        """Have batches drawn together from the snapshot that `hold` returned last."""

    def answer(self, snapshot: Snapshot, request: RolloutRequest) -> Rollouts:
        """Draw a batch from any snapshot now, and wait for it."""

    def close(self) -> None:
        """Stop what was started for drawing."""


class LocalWorker:
    """Sampler, chat, verifier and environment: answers problems with the weights it is given.

    Implements `RolloutWorker`: batches are drawn at the moment they are submitted.
    adjust: changes the rewards of training batches. recomputer: computes their log-probabilities
    again, where that is asked for. initial: draws in the place of the sampler from version 0; None
    for no other.
    """

    ahead = 0

    def __init__(
        self,
        sampler: Sampler,
        chat: ChatTemplate,
        verifier: BatchVerifier,
        task: Dataset,
        adjust: RewardAdjustment,
        recomputer: LogprobRecomputer | None = None,
        initial: Sampler | None = None,
    ):
        self.sampler, self.chat, self.verifier = sampler, chat, verifier
        self.adjust, self.recomputer = adjust, recomputer
        self.initial = initial
        self.limit = task.max_response_tokens
        self.conversation = task if isinstance(task, MultiTurnDataset) else None
        self._loaded: int | None = None

    def hold(self, snapshot: Snapshot) -> Snapshot:
        return snapshot.kept()

    def submit(self, snapshot: Snapshot, requests: list[RolloutRequest]) -> list[PendingRollouts]:
        return [given(rollouts) for rollouts in self.draw(snapshot, requests)]

    def close(self) -> None:
        """Stop the verifier's processes, if it has any."""
        if isinstance(self.verifier, VerifierPool):
            self.verifier.close()

    def draw(self, snapshot: Snapshot, requests: list[RolloutRequest]) -> list[Rollouts]:
        """Batches to train on: rewards adjusted, groups of equal rewards drawn anew."""
        batches = self._adjusted(snapshot, requests)
        attempts = max((len(spare) for request in requests for spare in request.spare), default=0)
        for attempt in range(1, 1 + attempts):
            stuck = {n: g for n, batch in enumerate(batches) if (g := _equal_rewards(batch))}
            if not stuck:
                break
            again = [requests[n].redrawn(groups, attempt) for n, groups in stuck.items()]
            anew = self._adjusted(snapshot, again)
            for (n, groups), drawn in zip(stuck.items(), anew, strict=True):
                batches[n] = _with_groups(batches[n], groups, drawn)
        return [self.recomputer(batch) for batch in batches] if self.recomputer else batches

    def _adjusted(self, snapshot: Snapshot, requests: list[RolloutRequest]) -> list[Rollouts]:
        """The answers, with the rewards that training gets."""
        return [
            replace(rollouts, results=self._adjusted_verdicts(rollouts, request))
            for rollouts, request in zip(self._answers(snapshot, requests), requests, strict=True)
        ]

    def _adjusted_verdicts(
        self, rollouts: Rollouts, request: RolloutRequest
    ) -> list[VerifierResult]:
        keys = [key for of_problem in request.keys for key in of_problem]
        return [
            replace(result, reward=self.adjust(result.reward, response, key, self.limit))
            if result.judged
            else result
            for result, response, key in zip(
                rollouts.results, rollouts.responses, keys, strict=True
            )
        ]

    def answer(self, snapshot: Snapshot, request: RolloutRequest) -> Rollouts:
        """One response per key, judged. Row order: problem by problem, key by key."""
        return self._answers(snapshot, [request])[0]

    def _answers(self, snapshot: Snapshot, requests: list[RolloutRequest]) -> list[Rollouts]:
        """One batch for each request, all sampled together; the time is shared by responses."""
        sampler = (None if snapshot.version else self.initial) or self.sampler
        if self._loaded != snapshot.version:
            weights = snapshot.full()
            sampler.load(weights)
            if self.recomputer:
                self.recomputer.load(weights)
            self._loaded = snapshot.version
        started = time.perf_counter()
        together = RolloutRequest.joined(requests)
        prompts = self.chat.encode_all([problem.messages for problem in together.problems])
        responses = self._respond(sampler, together, prompts)
        sampled = time.perf_counter()
        rows = [
            (group, response) for group, of_group in enumerate(responses) for response in of_group
        ]
        results = self.verifier(
            [(self._outcome(response), together.problems[group].answer) for group, response in rows]
        )
        seconds = {"rollout": sampled - started, "reward": time.perf_counter() - sampled}
        whole = Rollouts(
            index=together.keys[0][0].batch,
            prompts=[prompts[group] for group, _ in rows],
            responses=[response for _, response in rows],
            results=results,
            groups=[group for group, _ in rows],
            versions=[snapshot.version] * len(rows),
            seconds=seconds,
        )
        starts = accumulate((len(request.problems) for request in requests), initial=0)
        return [
            _part(whole, range(start, start + len(request.problems)), request.keys[0][0].batch)
            for start, request in zip(starts, requests, strict=False)
        ]

    def _respond(
        self, sampler: Sampler, request: RolloutRequest, prompts: list[list[int]]
    ) -> list[list[Response]]:
        """One response per key, of one turn, or of several where the task replies to them.

        Every turn is prompted with the tokens before it as they are: text is never tokenised
        twice, so what is trained on is what was sampled. A later turn is sampled to the full length
        and then cut to what the trajectory has left.
        """
        keys, temperature = request.keys, request.temperature
        responses = sampler.sample(prompts, keys, temperature)
        task = self.conversation
        if task is None:
            return responses
        limit = task.max_response_tokens
        live = [(group, k) for group, named in enumerate(keys) for k in range(len(named))]
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
            written = sampler.sample(
                [prompts[group] + responses[group][k].tokens for group, k in live],
                [[replace(keys[group][k], turn=turn)] for group, k in live],
                temperature,
            )
            for (group, k), [response] in zip(live, written, strict=True):
                responses[group][k] = responses[group][k].then(response, limit)
        return responses

    def _reply(
        self, task: MultiTurnDataset, problem: Problem, response: Response
    ) -> Response | None:
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


def _equal_rewards(rollouts: Rollouts) -> list[int]:
    """The groups whose judged rewards are all equal, or that have none."""
    rewards: dict[int, set[float]] = {group: set() for group in rollouts.groups}
    for group, result in zip(rollouts.groups, rollouts.results, strict=True):
        if result.judged:
            rewards[group].add(result.reward)
    return [group for group, values in rewards.items() if len(values) < 2]


def _part(whole: Rollouts, groups: range, index: int) -> Rollouts:
    """One batch of those that were drawn together, with its share of the time."""
    part = whole.of_groups(groups)
    share = len(part.responses) / len(whole.responses)
    return replace(
        part,
        index=index,
        drawn=sum(response.length for response in part.responses),
        seconds={name: value * share for name, value in whole.seconds.items()},
    )


def _with_groups(rollouts: Rollouts, groups: list[int], anew: Rollouts) -> Rollouts:
    """With these groups replaced by those of `anew`, in order. `redrawn` counts the groups of the
    first attempt: later ones are at some of these."""
    start = rollouts.groups[-1] + 1
    both = Rollouts.joined([rollouts, anew], rollouts.index)
    place = {group: start + n for n, group in enumerate(groups)}
    mixed = both.of_groups([place.get(group, group) for group in range(start)])
    seconds = {name: rollouts.seconds[name] + anew.seconds[name] for name in rollouts.seconds}
    return replace(mixed, seconds=seconds, redrawn=rollouts.redrawn or len(groups))
