"""Accuracy of a run's model, or of any other, on held-out problems, with a confidence interval."""

import contextlib
import dataclasses
import math
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from transformers import PreTrainedModel

from rec_experiments.common.batch import Rollouts
from rec_experiments.common.determinism import secure
from rec_experiments.common.distributed import ALONE
from rec_experiments.common.errors import UserError
from rec_experiments.config.experiment import Experiment
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.runs.api import Experiment as Composed
from rec_experiments.runs.checks import check_context, pick_device, short_enough
from rec_experiments.runs.prepare import load_problems, make_evaluator, make_worker
from rec_experiments.runs.provenance import data_digest
from rec_experiments.runs.run_folder import CONFIG
from rec_experiments.runs.saved import experiment_of, model_of
from rec_experiments.samplers.vllm import Vllm
from rec_experiments.training.evaluator import Evaluator
from rec_experiments.training.metrics import response_metrics

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Scores:
    """metrics: the `eval/…` columns of a run, and eval/pass@k. low, high: confidence interval of
    the accuracy. means: accuracy of each problem. data: a digest of the problems."""

    metrics: dict[str, float]
    low: float
    high: float
    means: list[float]
    data: str


def score(answered: Rollouts, data: str = "") -> Scores:
    of_problem = defaultdict(list)
    pairs = zip(answered.group_B.tolist(), answered.accuracy_B.tolist(), strict=True)
    for group, accuracy in pairs:
        of_problem[group].append(accuracy)
    means = [fmean(values) for values in of_problem.values()]
    low, high = interval(means)
    metrics = response_metrics("eval", answered)
    return Scores({**metrics, **pass_at_powers(list(of_problem.values()))}, low, high, means, data)


def pass_at_powers(answers: list[list[float]]) -> dict[str, float]:
    """eval/pass@k for k = 2, 4, 8, … up to the number of responses to each problem: the probability
    that one of k responses is right, without bias: 1 − C(n − c, k) / C(n, k) where c of n are right
    (arXiv 2107.03374, Eq. 1). Empty if an answer is neither right nor wrong.

    answers: accuracies of each problem's responses.
    """
    if {value for values in answers for value in values} - {0.0, 1.0}:
        return {}
    samples = min(map(len, answers))
    ks = [2**power for power in range(1, samples.bit_length()) if 2**power <= samples]
    return {f"eval/pass@{k}": fmean(_pass_at(k, values) for values in answers) for k in ks}


def _pass_at(k: int, values: list[float]) -> float:
    wrong = values.count(0.0)
    return 1 - math.comb(wrong, k) / math.comb(len(values), k)


def difference(one: Scores, other: Scores) -> tuple[float, float, float]:
    """Accuracy of one − other, and its t interval over the problems, which both answered.

    Raises UserError if they answered different problems.
    """
    if one.data != other.data:
        raise UserError(
            "evaluate: the two models answer different problems; give both the same data set"
        )
    gaps = [a - b for a, b in zip(one.means, other.means, strict=True)]
    half = _half_width(gaps)
    return fmean(gaps), fmean(gaps) - half, fmean(gaps) + half


def _half_width(values: list[float]) -> float:
    """Half of Student's interval of the mean at LEVEL; nan for a single value."""
    from scipy import stats

    if len(values) < 2:
        return math.nan
    quantile = stats.t.ppf((1 + LEVEL) / 2, len(values) - 1)
    return float(quantile * stdev(values) / math.sqrt(len(values)))


def interval(means: list[float]) -> tuple[float, float]:
    """Confidence interval at LEVEL of the mean over problems: Wilson's if each is right or wrong,
    otherwise Student's, clipped to [0, 1]. (nan, nan) for one problem that is neither."""
    from scipy import stats

    if set(means) <= {0.0, 1.0}:
        exact = stats.binomtest(int(sum(means)), len(means))
        found = exact.proportion_ci(LEVEL, method="wilson")
        return float(found.low), float(found.high)
    half = _half_width(means)
    if math.isnan(half):
        return math.nan, math.nan
    return max(0.0, fmean(means) - half), min(1.0, fmean(means) + half)


def evaluate(source: str, step: int | None, overrides: list[str]) -> Scores:
    """Evaluate a run folder, at its newest intact checkpoint or the one after `step` steps, or a
    pretrained model. Raises UserError for what the user can fix."""
    path = Path(os.path.expanduser(source))
    if (path / CONFIG).is_file():
        experiment = experiment_of(path, overrides)
        model, step = model_of(path, experiment.model, step)
    elif not path.is_dir() and (len(path.parts) > 2 or (path.parent.is_dir() and path.parent.name)):
        raise UserError(f"{source}: no such folder; give a run or model folder, or a hub name")
    else:
        named = ["model=pretrained", "model.path=named below", *overrides]
        experiment = Composed.compose(*named).settings
        chosen: Any = experiment.model
        # Not by an override, in which some characters of a path are special.
        experiment.model = dataclasses.replace(chosen, path=str(path))
        model, step = experiment.model.model(), step or 0
    secure(experiment.deterministic)
    torch.set_num_threads(experiment.threads)
    evaluator = evaluator_of(experiment, model)
    with contextlib.closing(evaluator.worker):
        try:
            return score(evaluator.answer(model, step), data_digest(evaluator.problems))
        except FloatingPointError as error:
            raise UserError(f"{source}: its weights give no finite logits") from error


def evaluator_of(experiment: Experiment, model: PreTrainedModel) -> Evaluator:
    """Evaluates the model in this process. Moves it to its device, if it computes here."""
    world = dataclasses.replace(ALONE, device=pick_device(experiment.device, ALONE))
    chat = ChatTemplate(experiment.model.tokenizer(), model)
    check_context(experiment.dataset, chat.context)
    _, problems = load_problems(experiment, world)
    problems = short_enough(experiment.dataset, chat, problems, "evaluation", print)
    if not isinstance(experiment.sampler, Vllm):  # which has its own weights on the device, and
        model.to(world.device)  # takes nearly all of its memory in a process that does not train
    worker = make_worker(experiment, model, chat)
    return make_evaluator(experiment, chat, worker, problems, world)
