"""What a run's model, or any other, scores on held-out problems, with an interval."""

import contextlib
import dataclasses
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from rec_experiments.config.experiment import Experiment
from rec_experiments.determinism import secure
from rec_experiments.distributed import ALONE
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.runs.api import Experiment as Composed
from rec_experiments.runs.prepare import (
    check_context,
    check_memory,
    machine_memory,
    make_worker,
    pick_device,
    policies_of,
    short_enough,
)
from rec_experiments.runs.run_folder import CONFIG
from rec_experiments.runs.saved import experiment_of, model_of
from rec_experiments.samplers.vllm import Vllm
from rec_experiments.training.metrics import response_metrics
from rec_experiments.training.trainer import TrainingContext, answer
from rec_experiments.types import Rollouts

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Scores:
    """metrics: as `eval/…` of a run. low, high: of the accuracy. problems: how many."""

    metrics: dict[str, float]
    low: float
    high: float
    problems: int


def score(answered: Rollouts) -> Scores:
    of_problem = defaultdict(list)
    for group, result in zip(answered.groups, answered.results, strict=True):
        of_problem[group].append(result.accuracy)
    means = [fmean(values) for values in of_problem.values()]
    low, high = interval(means)
    metrics = response_metrics("eval", answered.responses, answered.results)
    return Scores(metrics, low, high, len(means))


def interval(means: list[float]) -> tuple[float, float]:
    """Of the mean over problems, at LEVEL: Wilson's where each is right or wrong, otherwise
    Student's, within 0 and 1. (nan, nan) of one problem that is neither."""
    from scipy import stats

    if set(means) <= {0.0, 1.0}:
        exact = stats.binomtest(int(sum(means)), len(means))
        found = exact.proportion_ci(LEVEL, method="wilson")
        return float(found.low), float(found.high)
    if len(means) < 2:
        return math.nan, math.nan
    half = stats.t.ppf((1 + LEVEL) / 2, len(means) - 1) * stdev(means) / math.sqrt(len(means))
    return max(0.0, fmean(means) - half), min(1.0, fmean(means) + half)


def evaluate(source: str, step: int | None, overrides: list[str]) -> Scores:
    """Raises UserError for what the user can mend."""
    if (Path(source) / CONFIG).is_file():
        experiment = experiment_of(Path(source), overrides)
        model, step = model_of(Path(source), experiment, step)
    else:
        named = ["model=pretrained", "model.path=named below", *overrides]
        experiment = Composed.compose(*named).settings
        chosen: Any = experiment.model
        experiment.model = dataclasses.replace(chosen, path=source)  # whatever signs are in it
        model, step = experiment.model.model(), step or 0
    secure(experiment.deterministic)
    torch.set_num_threads(experiment.threads)
    context = context_of(experiment, model)
    with contextlib.closing(context.worker):
        return score(answer(experiment, context, step))


def context_of(experiment: Experiment, model: torch.nn.Module) -> TrainingContext:
    """What answering needs, in this process, of a model alone."""
    device = pick_device(experiment.device, ALONE)
    chat = ChatTemplate(experiment.model.tokenizer(), model)
    check_context(experiment, chat)
    _, problems = experiment.dataset.load()
    problems = problems[: experiment.eval_problems]
    check_memory(experiment, len(problems), machine_memory())
    problems = short_enough(experiment, chat, problems, "evaluation", print)
    if not isinstance(experiment.sampler, Vllm):  # it has weights of its own on the device, and
        model.to(device)  # asks for nearly all of it where nothing trains there
    return TrainingContext(
        model=model,
        policies=policies_of(experiment, {}),
        chat=chat,
        worker=make_worker(experiment, model, chat),
        train_problems=[],
        eval_problems=problems,
        world=dataclasses.replace(ALONE, device=device),
    )
