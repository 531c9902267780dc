"""The responses that a run's first batch would hold, drawn and judged without training."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from rec_experiments.common import rng
from rec_experiments.common.batch import Rollouts, SampleKey
from rec_experiments.common.distributed import ALONE
from rec_experiments.common.problems import Problem
from rec_experiments.config.experiment import Experiment
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.models import Pretrained
from rec_experiments.rollout.replay import problems_of
from rec_experiments.rollout.worker import RolloutRequest, Snapshot, equal_rewards
from rec_experiments.runs.checks import check_before_loading
from rec_experiments.runs.evaluation import score
from rec_experiments.runs.learning_signal import (
    RATE,
    Signal,
    in_one_line,
    rate_to_begin_with,
    too_high,
    what_to_try,
)
from rec_experiments.runs.prepare import load_initial, make_worker


@dataclass(frozen=True, slots=True)
class Trial:
    """A judged first batch. problems: of its groups. parameters: of the model."""

    experiment: Experiment
    rollouts: Rollouts
    problems: list[Problem]
    chat: ChatTemplate
    parameters: int

    @property
    def signal(self) -> Signal:
        batch = self.rollouts
        return Signal(
            right=float(batch.accuracy_B.mean()),
            cut=1 - float(batch.finished_B.double().mean()),
            varied=1 - len(equal_rewards(batch)) / batch.groups,
        )

    def lines(self) -> Iterator[str]:
        """What the user should know, line by line."""
        batch, scores, signal = self.rollouts, score(self.rollouts), self.signal
        yield f"model       {self.experiment.model.describe()}, {self.parameters / 1e6:.3g} M"
        for row in self._shown():
            yield from self._response(row)
        interval = f"95 % over prompts {scores.low:.3f} to {scores.high:.3f}"
        yield f"right       {signal.right:.3f} of {len(batch)} responses, {interval}"
        yield (
            f"variance    {signal.varied * batch.groups:.0f} of {batch.groups} groups have rewards "
            "that differ; the others give no gradient"
        )
        yield (
            f"cut off     {signal.cut:.3f} of the responses, at dataset.max_response_tokens="
            f"{self.experiment.dataset.max_response_tokens}; their mean length is "
            f"{scores.metrics['eval/response_length']:.0f}"
        )
        if failed := int((~batch.judged_B).sum()):
            yield f"not judged  {failed} responses, whose verifier crashed or took too long"
        yield from self._rate()
        if advice := what_to_try(self.signal, self.experiment):
            yield f"try         {advice}"

    def missing_rate(self, overrides: Sequence[str]) -> list[str]:
        """The override of the learning rate, if none of these gives one and the default is far from
        the rate to begin with."""
        if any(word.startswith(f"{RATE}=") for word in overrides) or not too_high(
            self.experiment, self.parameters
        ):
            return []
        return [f"{RATE}={rate_to_begin_with(self.parameters)[0]:g}"]

    def _rate(self) -> Iterator[str]:
        if isinstance(self.experiment.model, Pretrained):
            rate, setting = rate_to_begin_with(self.parameters)
            yield (
                f"rate        begin with {RATE}={rate:g}, that of setting={setting}, whose model "
                "is the nearest in size; then try a third and three times that"
            )

    def _shown(self) -> list[int]:
        """The first response of each verdict: right, wrong, cut off."""
        right_B, finished_B = self.rollouts.accuracy_B == 1, self.rollouts.finished_B
        verdicts = [right_B, ~right_B & finished_B, ~right_B & ~finished_B]
        return [int(verdict_B.nonzero()[0]) for verdict_B in verdicts if verdict_B.any()]

    def _response(self, row: int) -> Iterator[str]:
        one = self.rollouts.rows(torch.tensor([row]))
        problem = self.problems[int(one.group_B)]
        said = self.chat.transcript(one.tokens()[0], one.masks()[0])
        verdict = "right" if one.accuracy_B == 1 else "wrong"
        cut = "" if one.finished_B else ", cut off"
        reward = f"reward {float(one.reward_B):g}; answer {problem.expected}"
        yield f"question    {in_one_line(problem.messages[-1]['content'])}"
        yield f"  response  {in_one_line(said)}"
        yield f"  verdict   {verdict}{cut}, {reward}"


def try_first_batch(experiment: Experiment, note: Callable[[str], None]) -> Trial:
    """Draw and judge the first batch of a run, with the same random numbers. Raises UserError as
    `prepare` does."""
    world = check_before_loading(experiment, ALONE)
    loaded = load_initial(experiment, world, note)
    size, total = experiment.batch_size, len(loaded.train_problems)
    numbers = problems_of(0, size, total, experiment.seed, experiment.shuffle)
    problems = [loaded.train_problems[number] for number in numbers]
    keys = [
        [SampleKey(experiment.seed, rng.TRAIN, 0, group, k) for k in range(experiment.group_size)]
        for group in range(size)
    ]
    model = loaded.model.to(world.device)
    request = RolloutRequest(problems, keys, experiment.sampler.temperature)
    with contextlib.closing(make_worker(experiment, model, loaded.chat)) as worker:
        [rollouts] = worker.draw([Snapshot.of(model, 0)], [request])
    parameters = sum(each.numel() for each in model.parameters())
    return Trial(experiment, rollouts, problems, loaded.chat, parameters)
