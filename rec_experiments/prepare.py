"""From an experiment to a workbench: data, model, warm start, sampler and verifier, all checked."""

import copy
import dataclasses
import functools
import os
import sys
from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from rec_experiments.batching import Limits
from rec_experiments.codec import Codec
from rec_experiments.distributed import ALONE, World, check_ranks
from rec_experiments.experiment import Experiment
from rec_experiments.models import Tiny
from rec_experiments.rescore import Rescorer
from rec_experiments.rewards.judge import Isolated, Judge, inline
from rec_experiments.rollout import Actor
from rec_experiments.train import Workbench
from rec_experiments.types import MultiTurnTask, Problem, Task, UserError
from rec_experiments.warm_start import load_warm_start


def prepare(
    experiment: Experiment,
    note: Callable[[str], None] = lambda line: None,
    on_warm_step: Callable[[int, int], None] = lambda step, total: None,
    world: World = ALONE,
) -> Workbench:
    """Load everything. Raises UserError for what the user can mend; writes only to the cache.

    note gets a line for people; on_warm_step the steps of a warm start, done and
    in total, if one is made.
    """
    check_ranks(experiment.ranks, world, sys.argv[1:])
    world = dataclasses.replace(world, device=pick_device(experiment.device, world))
    experiment.pipeline.check(world.device, world.size)
    torch.set_num_threads(experiment.threads)
    train_problems, eval_problems = experiment.dataset.load()
    eval_problems = eval_problems[: experiment.eval_problems]
    if world.size > len(eval_problems):
        raise UserError(
            f"ranks={world.size}: must be at most the number of evaluation problems, here "
            f"{len(eval_problems)}"
        )
    model = experiment.model.model()
    codec = Codec(experiment.model.tokenizer(), model)
    check_lengths(experiment, codec, train_problems + eval_problems)
    if isinstance(experiment.dataset, MultiTurnTask):
        codec.encode_reply("")  # a template that cannot is refused now, not in the midst of a run
    if isinstance(experiment.model, Tiny):
        load_warm_start(experiment, model, codec, train_problems, note, on_warm_step)
    reference = None
    if experiment.kl_every:
        reference = world.split(copy.deepcopy(model).eval().requires_grad_(False))
    model.to(world.device)  # whole, for the sampler; what is trained is split afterwards
    actor = experiment.pipeline.start(
        here=lambda: make_actor(experiment, model, codec),
        elsewhere=functools.partial(load_actor, experiment),
        weights=model.state_dict(),
        ranks=world.size,
    )
    return Workbench(
        model=world.split(model),
        reference=reference,
        codec=codec,
        actor=actor,
        train_problems=train_problems,
        eval_problems=eval_problems,
        world=world,
    )


def load_actor(experiment: Experiment) -> Actor:
    """The actor for a process of its own. Its weights are the ones it is given before it draws."""
    torch.set_num_threads(experiment.threads)
    model = experiment.model.model()
    codec = Codec(experiment.model.tokenizer(), model)
    return make_actor(experiment, model.to(pick_device(experiment.device, ALONE)), codec)


def make_actor(experiment: Experiment, model: PreTrainedModel, codec: Codec) -> Actor:
    """Sampler, verifier and environment of the experiment."""
    sampler = experiment.sampler.build(
        model,
        codec.eos_ids,
        codec.pad_id,
        experiment.dataset.max_prompt_tokens,
        experiment.dataset.max_response_tokens,
    )
    rescorer = None
    if experiment.mismatch_cap is not None:
        rescorer = Rescorer(
            model,
            codec.pad_id,
            experiment.sampler.temperature,
            Limits(sequences=experiment.micro_batch_size, tokens=experiment.micro_batch_tokens),
            getattr(torch, experiment.model.compute_dtype),
        )
    task = experiment.dataset
    return Actor(sampler, codec, judge_for(task), task, rescorer)


def judge_for(task: Task) -> Judge:
    """In this process, or in killable workers where the task asks for them."""
    if not task.verifier_workers:
        return inline(task.verify)
    return Isolated(task.verify, task.verifier_workers, task.verifier_timeout)


def pick_device(name: str, world: World) -> torch.device:
    """This rank's device. Raises UserError if the machine does not have it."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device=cuda: this machine has no CUDA device; use device=cpu or device=auto"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu" or world.size == 1:
        return torch.device(name)
    index, devices = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if index >= devices:
        raise UserError(
            f"ranks={world.size}: each rank needs a CUDA device, this machine has {devices}; start "
            "fewer on it, or use device=cpu"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def check_lengths(experiment: Experiment, codec: Codec, problems: list[Problem]) -> None:
    """Raise UserError if a prompt and a longest response do not fit the model's context.

    Where there are several turns, the last may start at the end of a longest response and is
    sampled to that length again before it is cut.
    """
    limit, response = experiment.dataset.max_prompt_tokens, experiment.dataset.max_response_tokens
    times = 2 if isinstance(experiment.dataset, MultiTurnTask) else 1
    if limit + times * response > codec.context:
        raise UserError(
            f"dataset.max_prompt_tokens={limit}: with {'twice ' * (times - 1)}"
            f"dataset.max_response_tokens={response} it exceeds the model's context of "
            f"{codec.context} tokens"
        )
    prompts = codec.encode_all([problem.messages for problem in problems])
    for problem, prompt in zip(problems, prompts, strict=True):
        if len(prompt) > limit:
            raise UserError(
                f"dataset.max_prompt_tokens={limit}: a prompt has {len(prompt)} tokens "
                f"({problem.messages[-1]['content'][:60]!r} …); raise the limit or filter the data"
            )
