"""Rollout workers: they sample responses to problems and have them verified."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from rec_experiments.common.batch import Responses, Rollouts, SampleKey
from rec_experiments.common.distributed import copied_to_host
from rec_experiments.common.problems import Dataset, MultiTurnDataset, Problem
from rec_experiments.common.protocols import InFlightSampler, Sampler
from rec_experiments.datasets.verifiers.verifier_pool import (
    BatchVerifier,
    VerifierPool,
    report_crashes,
)
from rec_experiments.policy import lora
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.recompute import LogprobRecomputer
from rec_experiments.rollout.reward import RewardAdjustment

Weights = dict[str, Tensor]
PendingRollouts = Callable[[], Rollouts]  # waits for the rollouts and returns them


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The weights of one policy version, split among the ranks as the model is.

    weights: those that training changes. base: the others, of a model with adapters. first_token:
    the first token of a response that they sample, if several versions do.
    """

    version: int
    weights: Weights
    base: lora.Base | None = None
    first_token: int = 0

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
        """The request for these groups, each with its next spare problem. attempt: from 1."""
        return RolloutRequest(
            [self.spare[group][attempt - 1] for group in groups],
            [[replace(key, attempt=attempt) for key in self.keys[group]] for group in groups],
            self.temperature,
        )


def sample_keys(
    seed: int, stream: int, batch: int, groups: Sequence[int], samples: int
) -> list[list[SampleKey]]:
    """The keys of `samples` responses in each of these groups of a batch."""
    return [[SampleKey(seed, stream, batch, group, k) for k in range(samples)] for group in groups]


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
            stuck = {n: g for n, batch in enumerate(batches) if (g := equal_rewards(batch))}
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
                batches = [self.recomputer(batch, snapshot.first_token) for batch in batches]
        return batches

    def _adjusted(
        self, snapshots: Sequence[Snapshot], requests: list[RolloutRequest]
    ) -> list[Rollouts]:
        """The answers with adjusted rewards."""
        adjusted = []
        for rollouts, request in zip(self._answers(snapshots, requests), requests, strict=True):
            keys = [key for of_problem in request.keys for key in of_problem]
            reward_B = self.adjust(rollouts.reward_B, rollouts, keys, self.limit)
            reward_B = reward_B.where(rollouts.judged_B, rollouts.reward_B)
            adjusted.append(replace(rollouts, reward_B=reward_B))
        return adjusted

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
        groups = [group for group, named in enumerate(together.keys) for _ in named]
        answers = [together.problems[group].answer for group in groups]
        results = self.verifier(list(zip(self._outcomes(responses), answers, strict=True)))
        report_crashes(results)
        seconds = {"rollout": sampled - started, "reward": time.perf_counter() - sampled}
        whole = Rollouts.verified(
            responses,
            prompts=[prompts[group] for group in groups],
            groups=groups,
            results=results,
            version_BX=versions_of(snapshots, responses),
            index=together.keys[0][0].batch,
            seconds=seconds,
        )
        starts = accumulate((len(request.problems) for request in requests), initial=0)
        return [
            _part(whole, range(start, start + len(request.problems)), request.keys[0][0].batch)
            for start, request in zip(starts, requests, strict=False)
        ]

    def _respond_in_flight(
        self, snapshots: Sequence[Snapshot], request: RolloutRequest, prompts: list[list[int]]
    ) -> Responses:
        """One response per key, of one turn."""
        assert isinstance(self.sampler, InFlightSampler)
        self._loaded = None
        # Weights that are split among the ranks are gathered first: a rank whose responses end
        # early would not read them.
        policies = [(each.first_token, dict(each.whole())) for each in snapshots]
        return self.sampler.sample_in_flight(
            prompts, request.keys, request.temperature, policies, self.keeps_cache
        )

    def _respond(
        self, sampler: Sampler, request: RolloutRequest, prompts: list[list[int]]
    ) -> Responses:
        """One response per key; of several turns if the data set replies to them.

        The prompt of a turn is the tokens before it, unchanged: text is never tokenised twice, so
        training sees what was sampled. A later turn is sampled to the full length and then cut to
        what the trajectory has left.
        """
        temperature, task = request.temperature, self.conversation
        responses = sampler.sample(prompts, request.keys, temperature)
        if task is None:
            return responses
        limit = task.max_response_tokens
        keys = [(group, key) for group, named in enumerate(request.keys) for key in named]
        live = list(range(len(keys)))
        for turn in range(1, task.max_turns):
            problems = [request.problems[keys[row][0]] for row in live]
            replies = self._replies(task, problems, responses.rows(torch.tensor(live)))
            spoken_to = [row for row, reply in zip(live, replies, strict=True) if reply is not None]
            if not spoken_to:
                break
            tokens = [reply for reply in replies if reply is not None]
            unwritten = [[False] * len(reply) for reply in tokens]
            replied = Responses.of(tokens, finished=[False] * len(tokens), masks=unwritten)
            responses = _continued(responses, spoken_to, replied, limit)
            live = [row for row in spoken_to if responses.length_B[row] < limit]
            if not live:
                break
            so_far = responses.rows(torch.tensor(live)).tokens()
            written = sampler.sample(
                [prompts[keys[row][0]] + said for row, said in zip(live, so_far, strict=True)],
                [[replace(keys[row][1], turn=turn)] for row in live],
                temperature,
            )
            responses = _continued(responses, live, written, limit)
        return responses

    def _replies(
        self, task: MultiTurnDataset, problems: list[Problem], responses: Responses
    ) -> list[list[int] | None]:
        """The data set's reply to each response, as tokens; None if the trajectory ends."""
        said = zip(responses.tokens(), responses.masks(), strict=True)
        finished = responses.finished_B.tolist()
        texts = [
            task.reply(problem, self.chat.turns(*each)) if ended else None
            for problem, each, ended in zip(problems, said, finished, strict=True)
        ]
        return [None if text is None else self.chat.encode_reply(text) for text in texts]

    def _outcomes(self, responses: Responses) -> list[str]:
        """The texts to verify."""
        if self.conversation is None:
            return [self.chat.decode(tokens) for tokens in responses.tokens()]
        said = zip(responses.tokens(), responses.masks(), strict=True)
        return [self.conversation.outcome(self.chat.turns(*each)) for each in said]


def ready(rollouts: Rollouts) -> PendingRollouts:
    return lambda: rollouts


def versions_of(snapshots: Sequence[Snapshot], responses: Responses) -> Tensor:
    """The version that drew each token, B x T, or B x 1 if one drew them all."""
    version_B1 = torch.full((len(responses), 1), snapshots[0].version)
    if len(snapshots) == 1:
        return version_B1
    version_BT = version_B1.repeat(1, responses.token_BT.shape[1])
    for snapshot in snapshots[1:]:
        version_BT[:, snapshot.first_token :] = snapshot.version
    return version_BT


def _continued(responses: Responses, rows: list[int], after: Responses, limit: int) -> Responses:
    """The responses with these rows continued, cut at `limit` tokens."""
    longer = responses.rows(torch.tensor(rows)).then(after, limit)
    place_B = torch.arange(len(responses))
    place_B[rows] = len(responses) + torch.arange(len(rows))
    return Responses.joined([responses, longer]).rows(place_B)


def equal_rewards(rollouts: Rollouts) -> list[int]:
    """Groups whose rewards are all equal, or that have none."""
    group_B, judged_B = rollouts.group_B, rollouts.judged_B
    rewards = [rollouts.reward_B[(group_B == n) & judged_B] for n in range(rollouts.groups)]
    return [group for group, reward_N in enumerate(rewards) if len(reward_N.unique()) < 2]


def _part(whole: Rollouts, groups: range, index: int) -> Rollouts:
    """The rollouts of one request among those drawn together."""
    part = whole.of_groups(groups)
    share = len(part) / len(whole)
    return replace(
        part,
        index=index,
        drawn=int(part.written_B.sum()),
        seconds={name: value * share for name, value in whole.seconds.items()},
    )


def _with_groups(rollouts: Rollouts, groups: list[int], redrawn: Rollouts) -> Rollouts:
    """Replace these groups by those of `redrawn`, in order. The count of redrawn groups is that of
    the first attempt: later attempts are at some of these."""
    both = Rollouts.of_parts([rollouts, redrawn], rollouts.index)
    place = {group: rollouts.groups + n for n, group in enumerate(groups)}
    mixed = both.of_groups([place.get(group, group) for group in range(rollouts.groups)])
    seconds = {name: rollouts.seconds[name] + redrawn.seconds[name] for name in rollouts.seconds}
    return replace(mixed, seconds=seconds, redrawn=rollouts.redrawn or len(groups))
