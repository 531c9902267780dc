"""From an experiment to a workbench: data, model, warm start, sampler and verifier, all checked."""

import copy
import dataclasses
import functools
import os
import sys
from collections.abc import Callable

import torch
from transformers import PreTrainedModel

from rec_experiments import distributed
from rec_experiments.config.experiment import Experiment
from rec_experiments.datasets.text import LongPrompts, TextDataset
from rec_experiments.datasets.verifiers.verifier_pool import (
    BatchVerifier,
    VerifierPool,
    inline_verifier,
)
from rec_experiments.determinism import secure
from rec_experiments.distributed import ALONE, World, check_ranks
from rec_experiments.errors import UserError
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.compiled import compile_layers
from rec_experiments.policy.head import REFERENCE
from rec_experiments.policy.models import Pretrained, Tiny
from rec_experiments.policy.recompute import LogprobRecomputer
from rec_experiments.policy.warm_start import load_warm_start
from rec_experiments.rollout.worker import LocalWorker
from rec_experiments.samplers import shared
from rec_experiments.samplers.vllm import Vllm
from rec_experiments.training.policies import Policies
from rec_experiments.training.trainer import TrainingContext, forward_pass, pass_limits
from rec_experiments.types import Dataset, MultiTurnDataset, Problem, SlowlyVerifiedDataset

TOKEN_BYTES = 40  # of a drawn token and its log-probability, as they wait in a batch


def prepare(
    experiment: Experiment,
    note: Callable[[str], None] = lambda line: None,
    on_warm_step: Callable[[int, int], None] = lambda step, total: None,
    world: World = ALONE,
) -> TrainingContext:
    """Load everything. Raises UserError for what the user can mend; writes only to the cache.

    note gets a line for people; on_warm_step the steps of a warm start, done and
    in total, if one is made.
    """
    secure(experiment.deterministic)
    check_ranks(experiment.ranks, world, sys.argv[1:])
    device = pick_device(experiment.device, world)
    world = dataclasses.replace(world, device=device)
    experiment.pipeline.check(device, world.size)
    torch.set_num_threads(experiment.threads)
    check_memory(experiment, 1, machine_memory())
    train_problems, eval_problems = experiment.dataset.load()
    eval_problems = eval_problems[: experiment.eval_problems]
    check_memory(experiment, len(eval_problems), machine_memory())
    if world.size > len(eval_problems):
        raise UserError(
            f"ranks={world.size}: must be at most the number of evaluation problems, here "
            f"{len(eval_problems)}"
        )
    model = experiment.model.model()
    chat = ChatTemplate(experiment.model.tokenizer(), model)
    check_context(experiment, chat)
    train_problems = short_enough(experiment, chat, train_problems, "training", note)
    eval_problems = short_enough(experiment, chat, eval_problems, "evaluation", note)
    if isinstance(experiment.dataset, MultiTurnDataset):
        chat.encode_reply("")  # a template that cannot is refused now, not in the midst of a run
    if isinstance(experiment.model, Tiny):
        load_warm_start(
            experiment.model,
            experiment.dataset,
            model,
            chat,
            train_problems,
            note,
            on_warm_step,
        )
    compute = compute_dtype(experiment)
    models, model = place(model, extra_roles(experiment), world, compute)
    worker = experiment.pipeline.start(
        here=lambda: make_worker(experiment, model, chat),
        elsewhere=functools.partial(load_worker, experiment),
        weights=model.state_dict(),
        ranks=world.size,
    )
    model = world.split(model, compute)
    if isinstance(experiment.model, Pretrained) and experiment.model.compile_layers:
        compile_layers(model)  # when all copies are made
    return TrainingContext(
        model=model,
        policies=policies_of(experiment, models),
        chat=chat,
        worker=worker,
        train_problems=train_problems,
        eval_problems=eval_problems,
        world=world,
    )


def extra_roles(experiment: Experiment) -> list[str]:
    """The policies beside the one that is trained that are models of their own."""
    algorithm = experiment.algorithm()
    wanted = {
        REFERENCE: bool(experiment.kl_every) or algorithm.needs_reference,
        "proximal": "proximal" in algorithm.needs.logps and experiment.proximal.has_weights,
    }
    return [role for role, is_wanted in wanted.items() if is_wanted]


def policies_of(experiment: Experiment, models: dict[str, PreTrainedModel]) -> Policies:
    reads = "proximal" in experiment.algorithm().needs.logps
    proximal = experiment.proximal if reads else None
    return Policies(proximal=proximal, reference=experiment.reference, models=models)


def place(
    model: PreTrainedModel, roles: list[str], world: World, compute: torch.dtype
) -> tuple[dict[str, PreTrainedModel], PreTrainedModel]:
    """Frozen copies of the model for these roles, and the model itself, whole on its device for the
    sampler: what is trained is split afterwards.

    A reference that nothing shares the memory of waits on the host, until an update measures KL.
    """
    waits = [role for role in roles if role == REFERENCE and world.size == 1]
    models = {role: waiting(_frozen_copy(model), world.device) for role in waits}
    model.to(world.device)  # before the other copies: each is made whole, and then split
    for role in roles:
        if role not in models:
            models[role] = world.split(_frozen_copy(model), compute)
    return models, model


def waiting(model: PreTrainedModel, device: torch.device | str) -> PreTrainedModel:
    """The model with its weights on the host, and what is no weight on the device."""
    model.to(distributed.HOST)
    for module in model.modules():
        for name in module._non_persistent_buffers_set:
            buffer = getattr(module, name)
            if buffer is not None:
                setattr(module, name, buffer.to(device))
    return model


def compute_dtype(experiment: Experiment) -> torch.dtype:
    """Of the forward and backward pass."""
    dtype: torch.dtype = getattr(torch, experiment.model.compute_dtype)
    return dtype


def load_worker(experiment: Experiment) -> LocalWorker:
    """The worker for a process of its own. Its weights are the ones it is given before it draws."""
    secure(experiment.deterministic)
    torch.set_num_threads(experiment.threads)
    if isinstance(experiment.model, Pretrained) and _reads_names_only(experiment):
        model = experiment.model.skeleton()
    else:
        model = experiment.model.model().to(pick_device(experiment.device, ALONE))
    return make_worker(experiment, model, ChatTemplate(experiment.model.tokenizer(), model))


def _reads_names_only(experiment: Experiment) -> bool:
    """Whether what draws needs of a model the names of its weights alone: vLLM has weights of its
    own, and these would be in their way."""
    recomputes = "sampler" in experiment.algorithm().needs.logps
    return isinstance(experiment.sampler, Vllm) and not recomputes


def make_worker(experiment: Experiment, model: PreTrainedModel, chat: ChatTemplate) -> LocalWorker:
    """Sampler, verifier and environment of the experiment."""
    sampler = experiment.sampler.build(
        model,
        chat.eos_ids,
        chat.pad_id,
        experiment.dataset.max_prompt_tokens,
        experiment.dataset.max_response_tokens,
    )
    recomputer = None
    if "sampler" in experiment.algorithm().needs.logps:
        recomputer = LogprobRecomputer(
            model, forward_pass(experiment, chat), pass_limits(experiment)
        )
    task = experiment.dataset
    return LocalWorker(
        sampler,
        chat,
        verifier_for(task),
        task,
        experiment.reward,
        recomputer,
        # Runs of one seed have the initial weights in common and no others. The worker is told the
        # version of the weights, which a sampler is not.
        initial=shared.among_jobs(experiment.sampler, sampler),
    )


def _frozen_copy(model: PreTrainedModel) -> PreTrainedModel:
    """Its tensors are cloned by an operation of torch. Those of a plan have no values, and
    `deepcopy` would read the memory where these are not."""
    copies: dict[int, torch.Tensor] = {
        id(weight): torch.nn.Parameter(weight.detach().clone()) for weight in model.parameters()
    }
    copies |= {id(buffer): buffer.clone() for buffer in model.buffers()}
    return copy.deepcopy(model, copies).eval().requires_grad_(False)


def verifier_for(task: Dataset) -> BatchVerifier:
    """In this process, or in killable workers where the task asks for them."""
    if not task.verifier_workers:
        return inline_verifier(task.verify)
    imports = task.slow_imports() if isinstance(task, SlowlyVerifiedDataset) else []
    return VerifierPool(task.verify, task.verifier_workers, task.verifier_timeout, imports)


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


def check_memory(experiment: Experiment, eval_problems: int, memory: int) -> None:
    """Raise UserError if a batch or an evaluation of longest sequences needs more than `memory`,
    bytes. It is an estimate of the least: what samplers and passes need comes on top."""
    task = experiment.dataset
    longest = task.max_prompt_tokens + task.max_response_tokens
    for key, other, n in (
        ("batch_size", "group_size", experiment.batch_size),
        ("eval_samples", "eval_problems", eval_problems),
    ):
        each = experiment.group_size if key == "batch_size" else experiment.eval_samples
        needed = n * each * longest * TOKEN_BYTES
        if needed > memory:
            raise UserError(
                f"{key}={getattr(experiment, key)}: {n * each} sequences ({key} x {other}) of up "
                f"to {longest} tokens need about {needed / 1e9:.3g} GB, and this machine has "
                f"{memory / 1e9:.3g} GB; choose fewer, or shorter ones"
            )


def machine_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_context(experiment: Experiment, chat: ChatTemplate) -> None:
    """Raise UserError if a longest prompt and a longest response do not fit the model's context.

    Where there are several turns, the last may start at the end of a longest response and is
    sampled to that length again before it is cut.
    """
    limit, response = experiment.dataset.max_prompt_tokens, experiment.dataset.max_response_tokens
    times = 2 if isinstance(experiment.dataset, MultiTurnDataset) else 1
    if limit + times * response > chat.context:
        raise UserError(
            f"dataset.max_prompt_tokens={limit}: with {'twice ' * (times - 1)}"
            f"dataset.max_response_tokens={response} it exceeds the model's context of "
            f"{chat.context} tokens"
        )


def short_enough(
    experiment: Experiment,
    chat: ChatTemplate,
    problems: list[Problem],
    what: str,
    note: Callable[[str], None],
) -> list[Problem]:
    """The problems without those whose prompts are too long, which `note` is told of.

    Raises UserError that shows the first of them, unless the data set says that they are dropped,
    and if none is left.
    """
    limit, task = experiment.dataset.max_prompt_tokens, experiment.dataset
    prompts = chat.encode_all([problem.messages for problem in problems])
    kept = [p for p, prompt in zip(problems, prompts, strict=True) if len(prompt) <= limit]
    if len(kept) == len(problems):
        return problems
    of_text = isinstance(task, TextDataset)
    if isinstance(task, TextDataset) and task.long_prompts is LongPrompts.drop and kept:
        note(
            f"{len(problems) - len(kept)} of {len(problems)} {what} prompts are longer than "
            f"dataset.max_prompt_tokens={limit}, and left out"
        )
        return kept
    for problem, prompt in zip(problems, prompts, strict=True):
        if len(prompt) > limit:
            raise UserError(
                f"dataset.max_prompt_tokens={limit}: a prompt has {len(prompt)} tokens "
                f"({problem.messages[-1]['content'][:60]!r} …); raise the limit or filter the data"
                + (", or use dataset.long_prompts=drop" if of_text else "")
            )
    raise AssertionError(what)
