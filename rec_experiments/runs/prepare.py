"""From an experiment to a trainer: data, model, warm start, sampler and verifier, all checked."""

import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rec_experiments.common import distributed
from rec_experiments.common.determinism import secure
from rec_experiments.common.distributed import ALONE, Led, World
from rec_experiments.common.errors import UserError
from rec_experiments.common.problems import (
    Dataset,
    MultiTurnDataset,
    Problem,
    SlowlyVerifiedDataset,
)
from rec_experiments.config.experiment import Experiment
from rec_experiments.datasets.verifiers.verifier_pool import (
    BatchVerifier,
    VerifierPool,
    inline_verifier,
)
from rec_experiments.policy.batching import Limits
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.compiled import compile_layers
from rec_experiments.policy.logprobs import ForwardPass, frozen_copy
from rec_experiments.policy.lora import adapted, precise
from rec_experiments.policy.models import Adapted, FineTuned, Pretrained, Tiny
from rec_experiments.policy.recompute import LogprobRecomputer
from rec_experiments.policy.warm_start import load_warm_start
from rec_experiments.rollout.manager import RolloutManager
from rec_experiments.rollout.pipeline import Sequential, WorkerSetup
from rec_experiments.rollout.worker import LocalWorker, RolloutWorker
from rec_experiments.runs.checks import (
    check_before_loading,
    check_context,
    check_memory,
    check_rope,
    drawing_ranks,
    pick_device,
    short_enough,
)
from rec_experiments.runs.saved import load_teacher
from rec_experiments.samplers import shared
from rec_experiments.samplers.vllm import Vllm
from rec_experiments.training.evaluator import Evaluator
from rec_experiments.training.gradient import GradientPass
from rec_experiments.training.policies import Teacher
from rec_experiments.training.trainer import Trainer
from rec_experiments.training.updates import Policies


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
    world = check_before_loading(experiment, world)
    return assemble(experiment, load_initial(experiment, world, note, on_warm_step), world)


@dataclass(frozen=True, slots=True)
class Loaded:
    """model: what draws responses, on the host; the model itself, without adapters. weights: of the
    model, if the first of several ranks reads them one by one."""

    model: PreTrainedModel
    weights: Mapping[str, Tensor] | None
    chat: ChatTemplate
    train_problems: list[Problem]
    eval_problems: list[Problem]


def load_initial(
    experiment: Experiment,
    world: World,
    note: Callable[[str], None],
    on_warm_step: Callable[[int, int], None] = lambda step, total: None,
) -> Loaded:
    """Data and the model that a run begins with: loaded, checked that they fit each other and, if
    it has one, after its warm start."""
    secure(experiment.deterministic)
    torch.set_num_threads(experiment.threads)
    dataset, source = experiment.dataset, experiment.model
    train_problems, eval_problems = load_problems(experiment, world)
    weights = None
    # The first rank sends its weights to the others.
    if isinstance(source, Pretrained) and world.size > 1:
        model = source.skeleton()
        if world.leads and type(source) is Pretrained:
            weights = source.stored(model)
        if world.leads and weights is None:
            model = source.model()
    else:
        model = source.model()
    chat = ChatTemplate(source.tokenizer(), model)
    check_context(dataset, chat.context)
    check_rope(dataset, model.config)
    train_problems = short_enough(dataset, chat, train_problems, "training", note)
    eval_problems = short_enough(dataset, chat, eval_problems, "evaluation", note)
    if isinstance(dataset, MultiTurnDataset):
        chat.encode_reply("")  # refuses a template that cannot encode replies
    if isinstance(source, Tiny | FineTuned) and world.leads:
        load_warm_start(source, dataset, model, chat, train_problems, note, on_warm_step)
    return Loaded(model, weights, chat, train_problems, eval_problems)


def assemble(experiment: Experiment, loaded: Loaded, world: World) -> Trainer:
    """The trainer, with its worker started and all models on their devices."""
    plain, chat, algorithm = loaded.model, loaded.chat, experiment.algorithm()
    compute = compute_dtype(experiment)
    model = plain
    if isinstance(experiment.model, Adapted):
        model = adapted(plain, experiment.model.lora)
    reference = plain if experiment.reference.swap_every is None else model
    if isinstance(experiment.reference, Teacher):
        teacher = load_teacher(experiment.reference.path, experiment, chat, plain.config)
        reference = frozen_copy(teacher, compute)
    stored = loaded.weights
    alternates = isinstance(experiment.pipeline, Sequential)
    models = place(model, reference, frozen_roles(experiment), world, compute, stored, alternates)
    drawers = Led.of(world) if experiment.sampler.for_all_ranks else world
    drawing = plain if world.size == 1 else without_weights(plain)  # weights come with each load
    setup = WorkerSetup(
        here=lambda: make_worker(experiment, drawing.to(world.device), chat),
        elsewhere=functools.partial(load_worker, experiment),
        weights=plain.state_dict(),
        dtype=drawing_dtype(experiment, plain.dtype),
        device=torch.device(world.device),
        ranks=drawing_ranks(experiment, world),
        versions=experiment.sync.most_versions,
        draws=world.leads or drawers is world,
    )
    worker = experiment.pipeline.start(setup)
    model = world.split(model, compute, stored)
    if isinstance(experiment.model, Pretrained) and experiment.model.compile_layers:
        compile_layers(model)  # after all copies are made
    policies = Policies(
        proximal=experiment.proximal if "proximal" in algorithm.needs.logps else None,
        reference=experiment.reference,
        models=models,
    )
    gradient = GradientPass(
        algorithm=algorithm,
        forward=forward_pass(experiment),
        limits=pass_limits(experiment),
        others=policies.models,
        proximal=policies.proximal,
        kl=bool(experiment.kl_every),
        world=world,
    )
    dataset, fresh = experiment.dataset, experiment.buffer.fresh(experiment.batch_size)
    tokens_per_response = dataset.max_prompt_tokens + dataset.max_response_tokens
    tokens_per_draw = fresh * experiment.group_size * tokens_per_response
    rollouts = RolloutManager(
        worker=worker,
        schedule=experiment.sync,
        buffer=experiment.buffer,
        problems=loaded.train_problems,
        seed=experiment.seed,
        batches=experiment.updates.batches(experiment.steps),
        bundle=experiment.sampler.bundle(model, tokens_per_draw),
        batch_size=experiment.batch_size,
        group_size=experiment.group_size,
        temperature=experiment.sampler.temperature,
        shuffle=experiment.shuffle,
        world=drawers,
    )
    return Trainer(
        model=model,
        policies=policies,
        optimizer=experiment.optimizer,
        updates=experiment.updates,
        gradient=gradient,
        rollouts=rollouts,
        evaluator=make_evaluator(experiment, chat, worker, loaded.eval_problems, drawers),
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
    """The problems for training and for evaluation. Raises UserError if there are too many for the
    memory, or too few for the ranks."""
    check_memory(experiment, 1)
    train_problems, eval_problems = experiment.dataset.load()
    eval_problems = eval_problems[: experiment.eval_problems]
    check_memory(experiment, len(eval_problems))
    if world.size > len(eval_problems):
        raise UserError(
            f"ranks={world.size}: must be at most the number of evaluation problems, here "
            f"{len(eval_problems)}"
        )
    return train_problems, eval_problems


def place(
    model: PreTrainedModel,
    reference: PreTrainedModel,
    roles: list[str],
    world: World,
    compute: torch.dtype,
    stored: Mapping[str, Tensor] | None,
    alternates: bool,
) -> dict[str, PreTrainedModel]:
    """Frozen models for these roles. A single process moves `model` to its device, too.

    reference: the model that the reference equals: `model`, a teacher or, if `model` has adapters,
    the model that they were added to. A single process uses the latter two without a copy. stored:
    the weights of `model` where they are not in it. alternates: the process also draws, and may
    need its device's memory for that: a copy of `model` then stays on the host, except in updates
    that measure KL. In a process that trains alone, memory peaks in those updates anyway.
    """
    models = {}
    if world.size > 1:
        for role in roles:
            own, dtype = model, None
            if role == "reference":
                own = reference
                if compute.itemsize < own.dtype.itemsize:
                    dtype = compute  # to which FSDP would cast all weights before it gathers them
            given = stored if stored and own is model else own.state_dict()
            models[role] = world.split(frozen(without_weights(own, dtype)), compute, given)
        return models
    if "reference" in roles:
        if reference is not model:
            models["reference"] = reference.to(world.device).eval()
        elif alternates:
            models["reference"] = keep_on_host(frozen_copy(model, compute), world.device)
        else:
            models["reference"] = frozen_copy(model, compute).to(world.device)
    model.to(world.device)
    copies = {role: frozen(copy.deepcopy(model)) for role in roles if role not in models}
    return models | copies


def keep_on_host(model: PreTrainedModel, device: torch.device | str) -> PreTrainedModel:
    """Move the weights to the host, and buffers that are not part of the state to `device`."""
    model.to(distributed.HOST)
    for module in model.modules():
        for name in module._non_persistent_buffers_set:
            buffer = getattr(module, name)
            if buffer is not None:
                setattr(module, name, buffer.to(device))
    return model


def frozen(model: PreTrainedModel) -> PreTrainedModel:
    return model.eval().requires_grad_(False)


def without_weights(model: PreTrainedModel, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """A copy whose weights have no values yet, and take no memory until they are written. dtype: of
    these weights, None for the model's."""
    hollow = {
        id(weight): torch.nn.Parameter(torch.empty_like(weight, dtype=dtype), weight.requires_grad)
        for weight in model.parameters()
    }
    return copy.deepcopy(model, hollow)


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
    """A worker with the experiment's sampler, verifier and environment."""
    dataset = experiment.dataset
    merging = precise(model) if isinstance(experiment.model, Adapted) else model
    sampler = experiment.sampler.build(
        model if isinstance(experiment.sampler, Vllm) else merging,
        chat.eos_ids,
        dataset.max_prompt_tokens,
        dataset.max_response_tokens,
    )
    recomputer = None
    if "sampler" in experiment.algorithm().needs.logps:
        recomputer = LogprobRecomputer(merging, forward_pass(experiment), pass_limits(experiment))
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
    """The data set's verifier, in worker processes that can be killed if it asks for them."""
    if not dataset.verifier_workers:
        return inline_verifier(dataset.verify)
    imports = dataset.slow_imports() if isinstance(dataset, SlowlyVerifiedDataset) else []
    return VerifierPool(dataset.verify, dataset.verifier_workers, dataset.verifier_timeout, imports)


def compute_dtype(experiment: Experiment) -> torch.dtype:
    """The dtype of the forward and backward pass."""
    dtype: torch.dtype = getattr(torch, experiment.model.compute_dtype)
    return dtype


def forward_pass(experiment: Experiment) -> ForwardPass:
    return ForwardPass(
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


def drawing_dtype(experiment: Experiment, own: torch.dtype) -> torch.dtype | None:
    """Of the weights that another process draws with; None for `own`, that of the model.

    vLLM casts them to its own dtype, so it may get them in it, unless log-probabilities are
    recomputed from the same weights. The trainer then keeps a copy of each version itself, which
    pays if ranks share a single one.
    """
    sampler, recomputes = experiment.sampler, "sampler" in experiment.algorithm().needs.logps
    if recomputes or not isinstance(sampler, Vllm) or sampler.for_all_ranks:
        return None
    if experiment.ranks == 1 or experiment.sync.most_versions > 1 or own == torch.bfloat16:
        return None
    return torch.bfloat16 if sampler.dtype == "bfloat16" else None


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
