"""Rollout workers: they sample responses to problems and have them verified."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from rec_experiments.datasets.verifiers.verifier_pool import BatchVerifier, VerifierPool
from rec_experiments.distributed import copied_to_host
from rec_experiments.policy import lora
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.recompute import LogprobRecomputer
from rec_experiments.rollout.reward import RewardAdjustment
from rec_experiments.types import (
    Dataset,
    InFlightSampler,
    MultiTurnDataset,
    Problem,
    Response,
    Rollouts,
    SampleKey,
    Sampler,
    VerifierResult,
)

Weights = dict[str, Tensor]
PendingRollouts = Callable[[], Rollouts]  # waits for the rollouts and returns them


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The weights of one policy version, split among the ranks as the model is.

    weights: those that training changes. base: the others, of a model with adapters. start: the
    first token of a response that they sample, if several versions do.
    """

    version: int
    weights: Weights
    base: lora.Base | None = None
    start: int = 0

    @classmethod
    def of(cls, model: torch.nn.Module, version: int) -> "Snapshot":
        """The live weights, which the next gradient step changes."""
        return cls(version, lora.state_of(model), lora.Base.of(model))

    def copy(self) -> "Snapshot":
        return replace(self, weights=copied_to_host(self.weights))

    def whole(self) -> Mapping[str, Tensor]:
        """The weights to draw with, by the names of a model without adapters."""
        return lora.WholeWeights(self.weights, self.base)


@dataclass(frozen=True, slots=True)
class RolloutRequest:
    """Problems, and the keys of the responses to sample for each.

    spare: for each problem, those that replace it, one after the other, while the rewards of its
    group are all equal.
    """

    problems: list[Problem]
    keys: list[list[SampleKey]]
    temperature: float
    spare: list[list[Problem]] = field(default_factory=list)

    @classmethod
    def joined(cls, parts: "list[RolloutRequest]") -> "RolloutRequest":
        """All of them as one, without spare problems. They have the same temperature."""
        return cls(
            [problem for part in parts for problem in part.problems],
            [keys for part in parts for keys in part.keys],
            parts[0].temperature,
        )

    def redrawn(self, groups: list[int], attempt: int) -> "RolloutRequest":
        """These groups with their spare problem of attempt number `attempt`, from 1."""
        return RolloutRequest(
            [self.spare[group][attempt - 1] for group in groups],
            [[replace(key, attempt=attempt) for key in self.keys[group]] for group in groups],
            self.temperature,
        )


class RolloutWorker(Protocol):
    """Implemented by `LocalWorker` in this process and by `RemoteWorker` in another one."""

    @property
    def ahead(self) -> int | None:
        """Draws to submit before they are needed; None for as many as the schedule allows."""

    def update_weights(self, snapshot: Snapshot) -> Snapshot:
        """A copy of the weights to submit draws from. It is valid until as many further calls as
        the schedule has versions in one draw."""

    def submit(
        self, snapshots: Sequence[Snapshot], requests: list[RolloutRequest]
    ) -> list[PendingRollouts]:
        """Draw rollouts to train on, all together, from valid results of `update_weights`, in the
        order of their first tokens."""

    def answer(self, snapshot: Snapshot, request: RolloutRequest) -> Rollouts:
        """Draw rollouts from any weights now, as for an evaluation."""

    def close(self) -> None:
        """Stop the processes it has started."""


class LocalWorker:
    """Draws rollouts in this process, at the moment they are submitted.

    adjust: changes the rewards of training batches. recomputer: computes their log-probabilities
    again, if a piece needs that. initial: the sampler of version 0, if it is another one.
    keeps_cache: keep keys and values of older versions when weights change within a response.
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
        keeps_cache: bool = False,
    ):
        self.sampler, self.chat, self.verifier = sampler, chat, verifier
        self.adjust, self.recomputer = adjust, recomputer
        self.initial, self.keeps_cache = initial, keeps_cache
        self.limit = task.max_response_tokens
        self.conversation = task if isinstance(task, MultiTurnDataset) else None
        self._loaded: int | None = None

    def update_weights(self, snapshot: Snapshot) -> Snapshot:
        return snapshot.copy()

    def submit(
        self, snapshots: Sequence[Snapshot], requests: list[RolloutRequest]
    ) -> list[PendingRollouts]:
        return [ready(rollouts) for rollouts in self.draw(snapshots, requests)]

    def close(self) -> None:
        if isinstance(self.verifier, VerifierPool):
            self.verifier.close()

    def draw(self, snapshots: Sequence[Snapshot], requests: list[RolloutRequest]) -> list[Rollouts]:
        """Rollouts to train on: rewards are adjusted, groups of equal rewards are drawn again."""
        batches = self._adjusted(snapshots, requests)
        attempts = max((len(spare) for request in requests for spare in request.spare), default=0)
        for attempt in range(1, 1 + attempts):
            stuck = {n: g for n, batch in enumerate(batches) if (g := _equal_rewards(batch))}
            if not stuck:
                break
            again = [requests[n].redrawn(groups, attempt) for n, groups in stuck.items()]
            redrawn = self._adjusted(snapshots, again)
            for (n, groups), drawn in zip(stuck.items(), redrawn, strict=True):
                batches[n] = _with_groups(batches[n], groups, drawn)
        if self.recomputer:
            for snapshot in snapshots:
                if len(snapshots) > 1:
                    self.recomputer.load(snapshot.whole())
                batches = [self.recomputer(batch, snapshot.start) for batch in batches]
        return batches

    def _adjusted(
        self, snapshots: Sequence[Snapshot], requests: list[RolloutRequest]
    ) -> list[Rollouts]:
        """The answers with adjusted rewards."""
        return [
            replace(rollouts, results=self._adjusted_results(rollouts, request))
            for rollouts, request in zip(self._answers(snapshots, requests), requests, strict=True)
        ]

    def _adjusted_results(
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
        """One verified response per key, ordered by problem and key."""
        return self._answers([snapshot], [request])[0]

    def _answers(
        self, snapshots: Sequence[Snapshot], requests: list[RolloutRequest]
    ) -> list[Rollouts]:
        """Rollouts for each request, sampled together; each gets its share of the time."""
        first = snapshots[0]
        sampler = (None if first.version else self.initial) or self.sampler
        if len(snapshots) == 1 and self._loaded != first.version:
            weights = first.whole()
            sampler.load(weights)
            if self.recomputer:
                self.recomputer.load(weights)
            self._loaded = first.version
        started = time.perf_counter()
        together = RolloutRequest.joined(requests)
        prompts = self.chat.encode_all([problem.messages for problem in together.problems])
        if len(snapshots) == 1:
            responses = self._respond(sampler, together, prompts)
        else:
            responses = self._respond_in_flight(snapshots, together, prompts)
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
            versions=[first.version] * len(rows),
            seconds=seconds,
        )
        starts = accumulate((len(request.problems) for request in requests), initial=0)
        return [
            _part(whole, range(start, start + len(request.problems)), request.keys[0][0].batch)
            for start, request in zip(starts, requests, strict=False)
        ]

    def _respond_in_flight(
        self, snapshots: Sequence[Snapshot], request: RolloutRequest, prompts: list[list[int]]
    ) -> list[list[Response]]:
        """One response per key, of one turn."""
        assert isinstance(self.sampler, InFlightSampler)
        self._loaded = None
        # Weights that are split among the ranks are gathered first: a rank whose responses end
        # early would not read them.
        policies = [(each.start, dict(each.whole())) for each in snapshots]
        return self.sampler.sample_in_flight(
            prompts, request.keys, request.temperature, policies, self.keeps_cache
        )

    def _respond(
        self, sampler: Sampler, request: RolloutRequest, prompts: list[list[int]]
    ) -> list[list[Response]]:
        """One response per key; of several turns if the data set replies to them.

        The prompt of a turn is the tokens before it, unchanged: text is never tokenised twice, so
        training sees what was sampled. A later turn is sampled to the full length and then cut to
        what the trajectory has left.
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
        """The data set's reply to a response, or None if the trajectory ends."""
        if not response.finished:
            return None
        text = task.reply(problem, self.chat.turns(response))
        if text is None:
            return None
        tokens = self.chat.encode_reply(text)
        return Response(tokens, [0.0] * len(tokens), False, [False] * len(tokens))

    def _outcome(self, response: Response) -> str:
        """The text to verify."""
        if self.conversation is None:
            return self.chat.decode(response.tokens)
        return self.conversation.outcome(self.chat.turns(response))


def ready(rollouts: Rollouts) -> PendingRollouts:
    return lambda: rollouts


def _equal_rewards(rollouts: Rollouts) -> list[int]:
    """Groups whose rewards are all equal, or that have none."""
    rewards: dict[int, set[float]] = {group: set() for group in rollouts.groups}
    for group, result in zip(rollouts.groups, rollouts.results, strict=True):
        if result.judged:
            rewards[group].add(result.reward)
    return [group for group, values in rewards.items() if len(values) < 2]


def _part(whole: Rollouts, groups: range, index: int) -> Rollouts:
    """The rollouts of one request among those drawn together."""
    part = whole.of_groups(groups)
    share = len(part.responses) / len(whole.responses)
    return replace(
        part,
        index=index,
        drawn=sum(response.length for response in part.responses),
        seconds={name: value * share for name, value in whole.seconds.items()},
    )


def _with_groups(rollouts: Rollouts, groups: list[int], redrawn: Rollouts) -> Rollouts:
    """Replace these groups by those of `redrawn`, in order. The count of redrawn groups is that of
    the first attempt: later attempts are at some of these."""
    start = rollouts.groups[-1] + 1
    both = Rollouts.joined([rollouts, redrawn], rollouts.index)
    place = {group: start + n for n, group in enumerate(groups)}
    mixed = both.of_groups([place.get(group, group) for group in range(start)])
    seconds = {name: rollouts.seconds[name] + redrawn.seconds[name] for name in rollouts.seconds}
    return replace(mixed, seconds=seconds, redrawn=rollouts.redrawn or len(groups))
