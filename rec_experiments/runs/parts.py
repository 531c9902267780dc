"""Parts of a trainer and of an evaluation, each made from an experiment."""

import torch

from rec_experiments.common.distributed import World
from rec_experiments.common.problems import Problem
from rec_experiments.config.experiment import Experiment
from rec_experiments.policy.batching import Limits
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.logprobs import ForwardPass
from rec_experiments.policy.models import Pretrained
from rec_experiments.rollout.worker import RolloutWorker
from rec_experiments.training.evaluator import Evaluator


def compute_dtype(experiment: Experiment) -> torch.dtype:
    """The dtype of the forward and backward pass."""
    dtype: torch.dtype = getattr(torch, experiment.model.compute_dtype)
    return dtype


def forward_pass(experiment: Experiment, pad_id: int) -> ForwardPass:
    return ForwardPass(
        pad_id=pad_id,
        temperature=experiment.sampler.temperature,
        compute_dtype=compute_dtype(experiment),
        **layout(experiment),
    )


def pass_limits(experiment: Experiment) -> Limits:
    return Limits(
        sequences=experiment.micro_batch_size,
        tokens=experiment.micro_batch_tokens,
        **layout(experiment),
    )


def layout(experiment: Experiment) -> dict[str, bool]:
    """How sequences are laid out in the rows of a pass, as fields of `Limits`."""
    if not isinstance(experiment.model, Pretrained):
        return {}
    return {"packed": experiment.model.packed, "shared": experiment.model.shared_prompts}


def frozen_roles(experiment: Experiment) -> list[str]:
    """The roles of policies that are frozen models beside the trained one."""
    algorithm = experiment.algorithm()
    wanted = {
        "reference": bool(experiment.kl_every) or algorithm.needs_reference,
        "proximal": "proximal" in algorithm.needs.logps and experiment.proximal.has_weights,
    }
    return [role for role, is_wanted in wanted.items() if is_wanted]


def make_evaluator(
    experiment: Experiment,
    chat: ChatTemplate,
    worker: RolloutWorker,
    problems: list[Problem],
    world: World,
) -> Evaluator:
    return Evaluator(
        worker=worker,
        chat=chat,
        problems=problems,
        samples=experiment.eval_samples,
        temperature=experiment.sampler.eval_temperature,
        seed=experiment.seed,
        world=world,
    )
