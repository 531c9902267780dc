"""From an experiment to a trainer: data, model, warm start, sampler and verifier, all checked."""

import copy
import dataclasses
import functools
import sys
from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from rec_experiments import distributed
from rec_experiments.algo import contract
from rec_experiments.config.experiment import Experiment
from rec_experiments.datasets.verifiers.verifier_pool import (
    BatchVerifier,
    VerifierPool,
    inline_verifier,
)
from rec_experiments.determinism import secure
from rec_experiments.distributed import ALONE, World, check_ranks
from rec_experiments.errors import UserError, check_installed
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.compiled import compile_layers
from rec_experiments.policy.head import REFERENCE
from rec_experiments.policy.lora import adapted
from rec_experiments.policy.models import Adapted, FineTuned, Pretrained, Tiny
from rec_experiments.policy.recompute import LogprobRecomputer
from rec_experiments.policy.warm_start import load_warm_start
from rec_experiments.rollout.worker import LocalWorker
from rec_experiments.runs.checks import (
    check_context,
    check_memory,
    check_rope,
    machine_memory,
    pick_device,
    short_enough,
)
from rec_experiments.runs.parts import (
    compute_dtype,
    forward_pass,
    frozen_roles,
    gradient_pass,
    make_evaluator,
    make_manager,
    make_policies,
    pass_limits,
)
from rec_experiments.samplers import shared
from rec_experiments.samplers.vllm import Vllm
from rec_experiments.training.optimizers import AdamW8bit
from rec_experiments.training.trainer import Trainer
from rec_experiments.types import Dataset, MultiTurnDataset, Problem, SlowlyVerifiedDataset


def prepare(
    experiment: Experiment,
    note: Callable[[str], None] = lambda line: None,
    on_warm_step: Callable[[int, int], None] = lambda step, total: None,
    world: World = ALONE,
) -> Trainer:
    """Load and check everything. Close the trainer's worker when the run is over.

    note gets lines for the user; on_warm_step gets the steps of a warm start, done and in total.
    Writes only to the cache. Raises UserError for what the user can fix.
    """
    contract.check(experiment.algorithm())
    secure(experiment.deterministic)
    check_ranks(experiment.ranks, world, sys.argv[1:])
    world = dataclasses.replace(world, device=pick_device(experiment.device, world))
    experiment.sampler.check()
    if isinstance(experiment.model, Adapted):
        check_installed("adapter=lora", "peft")
    if isinstance(experiment.optimizer, AdamW8bit):
        check_installed("optimizer=adamw_8bit", "bitsandbytes")
    experiment.pipeline.check(torch.device(world.device), world.neighbours)
    torch.set_num_threads(experiment.threads)
    dataset = experiment.dataset
    train_problems, eval_problems = load_problems(experiment, world)
    plain = experiment.model.model()  # what draws responses; the model itself, without adapters
    chat = ChatTemplate(experiment.model.tokenizer(), plain)
    check_context(dataset, chat)
    check_rope(dataset, plain.config)
    train_problems = short_enough(dataset, chat, train_problems, "training", note)
    eval_problems = short_enough(dataset, chat, eval_problems, "evaluation", note)
    if isinstance(dataset, MultiTurnDataset):
        chat.encode_reply("")  # refuses a template that cannot encode replies
    if isinstance(experiment.model, Tiny | FineTuned):
        load_warm_start(
            experiment.model, dataset, plain, chat, train_problems, note, on_warm_step
        )  # fmt: skip
    model = plain
    if isinstance(experiment.model, Adapted):
        model = adapted(plain, experiment.model.lora)
    initial = plain if experiment.reference.swap_every is None else model
    models = place(model, initial, frozen_roles(experiment), world, compute_dtype(experiment))
    worker = experiment.pipeline.start(
        here=lambda: make_worker(experiment, plain.to(world.device), chat),
        elsewhere=functools.partial(load_worker, experiment),
        weights=plain.state_dict(),
        ranks=world.neighbours,
        versions=experiment.sync.most_versions,
    )
    model = world.split(model, compute_dtype(experiment))
    if isinstance(experiment.model, Pretrained) and experiment.model.compile_layers:
        compile_layers(model)  # after all copies are made
    policies = make_policies(experiment, models)
    return Trainer(
        model=model,
        policies=policies,
        optimizer=experiment.optimizer,
        updates=experiment.updates,
        gradient=gradient_pass(experiment, chat.pad_id, policies, world),
        rollouts=make_manager(experiment, model, worker, train_problems, world),
        evaluator=make_evaluator(experiment, chat, worker, eval_problems, world),
        seed=experiment.seed,
        steps=experiment.steps,
        eval_every=experiment.eval_every,
        checkpoint_every=experiment.checkpoint_every,
        async_checkpoints=experiment.async_checkpoints,
        kl_every=experiment.kl_every,
        resplit=experiment.resplit,
        world=world,
    )


def load_problems(experiment: Experiment, world: World) -> tuple[list[Problem], list[Problem]]:
    """For training and for evaluation. Raises UserError if there are too many for the memory, or
    too few for the ranks."""
    check_memory(experiment, 1, machine_memory())
    train_problems, eval_problems = experiment.dataset.load()
    eval_problems = eval_problems[: experiment.eval_problems]
    check_memory(experiment, len(eval_problems), machine_memory())
    if world.size > len(eval_problems):
        raise UserError(
            f"ranks={world.size}: must be at most the number of evaluation problems, here "
            f"{len(eval_problems)}"
        )
    return train_problems, eval_problems


def place(
    model: PreTrainedModel,
    initial: PreTrainedModel,
    roles: list[str],
    world: World,
    compute: torch.dtype,
) -> dict[str, PreTrainedModel]:
    """Frozen models for these roles. `model` itself moves to its device, not yet split: the sampler
    needs it whole.

    initial: the model that the reference equals: `model` or, if it has adapters, the model that
    they were added to. A single process uses the latter without a copy. A copy of the former stays
    on the host, except in updates that measure KL.
    """
    models = {}
    if REFERENCE in roles and world.size == 1:
        shares = initial is not model
        models[REFERENCE] = (
            initial.to(world.device).eval()
            if shares
            else keep_on_host(_frozen_copy(initial), world.device)
        )
    model.to(world.device)  # before the other copies, each of which is made whole and then split
    for role in roles:
        if role not in models:
            own = initial if role == REFERENCE else model
            models[role] = world.split(_frozen_copy(own), compute)
    return models


def keep_on_host(model: PreTrainedModel, device: torch.device | str) -> PreTrainedModel:
    """Move the weights to the host, and buffers that are not part of the state to `device`."""
    model.to(distributed.HOST)
    for module in model.modules():
        for name in module._non_persistent_buffers_set:
            buffer = getattr(module, name)
            if buffer is not None:
                setattr(module, name, buffer.to(device))
    return model


def _frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    return copy.deepcopy(model).eval().requires_grad_(False)


def load_worker(experiment: Experiment) -> LocalWorker:
    """The worker of a separate process, which is sent weights before it draws."""
    secure(experiment.deterministic)
    torch.set_num_threads(experiment.threads)
    recomputes = "sampler" in experiment.algorithm().needs.logps
    if (
        isinstance(experiment.model, Pretrained)
        and isinstance(experiment.sampler, Vllm)
        and not recomputes
    ):
        model = experiment.model.skeleton()  # vLLM has its own weights and needs the memory
    else:
        model = experiment.model.model().to(pick_device(experiment.device, ALONE))
    return make_worker(experiment, model, ChatTemplate(experiment.model.tokenizer(), model))


def make_worker(experiment: Experiment, model: PreTrainedModel, chat: ChatTemplate) -> LocalWorker:
    """With the experiment's sampler, verifier and environment."""
    dataset = experiment.dataset
    sampler = experiment.sampler.build(
        model, chat.eos_ids, chat.pad_id, dataset.max_prompt_tokens, dataset.max_response_tokens
    )
    recomputer = None
    if "sampler" in experiment.algorithm().needs.logps:
        recomputer = LogprobRecomputer(
            model, forward_pass(experiment, chat.pad_id), pass_limits(experiment)
        )
    return LocalWorker(
        sampler,
        chat,
        verifier_for(dataset),
        dataset,
        experiment.reward,
        recomputer,
        # Runs of one seed share their initial weights only. The worker knows the version of its
        # weights, the sampler does not.
        initial=shared.among_jobs(experiment.sampler, sampler),
        keeps_cache=experiment.sync.keeps_cache,
    )


def verifier_for(dataset: Dataset) -> BatchVerifier:
    """In this process, or in worker processes that can be killed if the data set asks for them."""
    if not dataset.verifier_workers:
        return inline_verifier(dataset.verify)
    imports = dataset.slow_imports() if isinstance(dataset, SlowlyVerifiedDataset) else []
    return VerifierPool(dataset.verify, dataset.verifier_workers, dataset.verifier_timeout, imports)
