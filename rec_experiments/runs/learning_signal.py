"""Whether rewards give a gradient, what to try where they do not, and a rate to begin with: in the
first batches of a run, or in a trial, whose responses are drawn and judged without training."""

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from omegaconf import OmegaConf

from rec_experiments.common import rng
from rec_experiments.common.batch import Rollouts
from rec_experiments.common.distributed import ALONE
from rec_experiments.common.problems import Problem
from rec_experiments.config.experiment import Experiment
from rec_experiments.config.plugins import CONF
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.models import Adapted, FineTuned, Pretrained
from rec_experiments.rollout.replay import problems_of
from rec_experiments.rollout.worker import RolloutRequest, Snapshot, equal_rewards, sample_keys
from rec_experiments.runs.checks import check_before_loading
from rec_experiments.runs.evaluation import score
from rec_experiments.runs.prepare import load_initial, make_worker
from rec_experiments.runs.reading import Row
from rec_experiments.training.policies import Teacher

# Parameters of language models, and the settings that hold a rate at which such a model learned.
RATES = {135e6: "lm/gsm8k", 500e6: "paper/gsm8k_05b", 1.5e9: "paper/gsm8k"}
RATE = "optimizer.learning_rate"
TOO_HIGH = 2.0  # times the rate to begin with
TRIED = 3  # batches without a gradient, after which a run warns
ENOUGH = 0.125  # of the groups; with fewer that give a gradient, most of a batch is wasted
LONGEST_SHOWN = 300  # characters of a question or a response


@dataclass(frozen=True, slots=True)
class Signal:
    """What some responses give to learn from. right, cut: the share of responses that were judged
    right, and that were cut at the length limit. varied: the share of groups that give a gradient,
    because their rewards differ."""

    right: float
    cut: float
    varied: float


def what_to_try(signal: Signal, experiment: Experiment) -> str:
    """Why hardly anything can be learned from such responses, and what to try; "" if enough can."""
    if signal.varied >= ENOUGH and signal.cut < 1:
        return ""
    dataset = experiment.dataset
    prompted = hasattr(dataset, "system_prompt")
    if signal.cut > 0.5:
        asking = ", or ask for short answers with dataset.system_prompt" if prompted else ""
        many = "every response was" if signal.cut == 1 else "most responses were"
        return (
            f"{many} cut at dataset.max_response_tokens={dataset.max_response_tokens} before the "
            f"end: raise it{asking}"
        )
    if signal.right < 0.5:
        few = "few responses were" if signal.right else "no response was"
        return (
            f"{few} judged right: {_better_start(experiment)}; choose easier problems; "
            + ("say in dataset.system_prompt how to write an answer; " if prompted else "")
            + "and see whether the verdict on the response shown is fair"
        )
    return (
        "nearly all responses to a problem have the same reward: choose harder problems, or raise "
        "group_size or sampler.temperature"
    )


def _better_start(experiment: Experiment) -> str:
    if isinstance(experiment.model, FineTuned):
        return f"raise model.warm_start.steps={experiment.model.warm_start.steps}"
    if isinstance(experiment.model, Pretrained):
        return "begin with a short supervised phase, model=fine_tuned"
    return "begin with a language model, model=fine_tuned model.path=FOLDER"


def rate_to_begin_with(parameters: float) -> tuple[float, str]:
    """A learning rate for a language model of this size, and the setting that it is from: that of
    the nearest size, as a factor."""
    nearest = min(RATES, key=lambda size: abs(math.log(size / parameters)))
    setting = OmegaConf.load(CONF / "setting" / f"{RATES[nearest]}.yaml")
    return float(setting.optimizer.learning_rate), RATES[nearest]


def too_high(experiment: Experiment, parameters: float) -> str:
    """A remark on a learning rate far above that of language models of this size, or ""."""
    own: float | None = getattr(experiment.optimizer, "learning_rate", None)
    is_language_model = isinstance(experiment.model, Pretrained)
    if own is None or not is_language_model or isinstance(experiment.model, Adapted):
        return ""
    rate, setting = rate_to_begin_with(parameters)
    if own <= TOO_HIGH * rate:
        return ""
    return (
        f"{RATE}={own:g}: is high for a model of {parameters / 1e6:.3g} million parameters; "
        f"setting={setting} begins with {rate:g}"
    )


def watch_first_batches(
    experiment: Experiment, example: Callable[[], Row | None], note: Callable[[str], None]
) -> Callable[[Row], None]:
    """A function that sees each row of metrics.jsonl and warns if the first batches of the run give
    nothing to learn from. example: a row of samples.jsonl to show then."""
    rows: list[Row] = []
    last = min(TRIED * experiment.updates.per_batch, experiment.steps)

    def see(row: Row) -> None:
        if 1 <= row["step"] <= last:
            rows.append(row)
        if row["step"] != last or len(rows) < last:  # not yet, or begun by an earlier process
            return
        keys = ("accuracy", "truncated", "live_groups")
        right, cut, varied = (fmean(row[f"train/{key}"] for row in rows) for key in keys)
        signal = Signal(right=right, cut=cut, varied=varied)
        if (signal.varied or isinstance(experiment.reference, Teacher)) and signal.cut < 1:
            return
        found = "no gradient" if not signal.varied else "only responses that were cut"
        note(f"warning     {found} in the first batches: {what_to_try(signal, experiment)}")
        if shown := example():
            note(f"  prompt    {in_one_line(shown['prompt'])}")
            note(f"  response  {in_one_line(shown['response'])}")
            note(f"  answer    {shown['answer']}, reward {shown['reward']:g}")

    return see


def in_one_line(text: str) -> str:
    """A text in one line: if it is long, its beginning and its end."""
    line = re.sub(r"\s*\n\s*", " ⏎ ", text.strip())
    half = LONGEST_SHOWN // 2
    return line if len(line) <= LONGEST_SHOWN else f"{line[:half]}…{line[-half:]}"


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
    keys = sample_keys(experiment.seed, rng.TRAIN, 0, range(size), experiment.group_size)
    model = loaded.model.to(world.device)
    request = RolloutRequest(problems, keys, experiment.sampler.temperature)
    with contextlib.closing(make_worker(experiment, model, loaded.chat)) as worker:
        [rollouts] = worker.draw([Snapshot.of(model, 0)], [request])
    parameters = sum(each.numel() for each in model.parameters())
    return Trial(experiment, rollouts, problems, loaded.chat, parameters)
