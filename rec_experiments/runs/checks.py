"""Checks before a run starts: its device, memory, context and prompt lengths."""

import dataclasses
import os
import sys
from collections.abc import Callable

import torch
from transformers import PretrainedConfig

from rec_experiments.common.distributed import World, check_ranks
from rec_experiments.common.errors import UserError, check_installed, first_line
from rec_experiments.common.problems import Dataset, MultiTurnDataset, Problem
from rec_experiments.config.experiment import Experiment
from rec_experiments.datasets.text import TextDataset
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.models import Adapted
from rec_experiments.training.updates import AdamW8bit

TOKEN_BYTES = 40  # of a sampled token and its log-probability in a batch
# Rotary embeddings that, beyond the original context, depend on the longest sequence of a batch.
CHANGING_ROPE = ("dynamic", "longrope")


def check_before_loading(experiment: Experiment, world: World) -> World:
    """The world with its device. Raises UserError for what this machine or installation lacks, and
    for a loss whose pieces do not fit."""
    experiment.checked_algorithm()
    check_ranks(experiment.ranks, world, sys.argv[1:])
    world = dataclasses.replace(world, device=pick_device(experiment.device, world))
    experiment.sampler.check()
    if isinstance(experiment.model, Adapted):
        check_installed("adapter=lora", "peft")
    if isinstance(experiment.optimizer, AdamW8bit):
        check_installed("optimizer=adamw_8bit", "bitsandbytes")
    experiment.pipeline.check(torch.device(world.device), drawing_ranks(experiment, world))
    return world


def drawing_ranks(experiment: Experiment, world: World) -> int:
    """How many ranks on this machine need a device to draw on."""
    return 0 if experiment.sampler.for_all_ranks else world.neighbours


def pick_device(name: str, world: World) -> torch.device:
    """This rank's device. Raises UserError if the machine does not have it."""
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device=cuda: {why_no_cuda()}; or use device=cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu" or world.size == 1:
        return torch.device(name)
    index, devices = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if index >= devices:
        raise UserError(
            f"ranks={world.size}: rank {world.rank} needs CUDA device {index} of this machine, "
            f"which has {devices}; start fewer ranks on it, or use device=cpu"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def why_no_cuda() -> str:
    """Why torch sees no CUDA device, and what to do."""
    build = f"torch {torch.__version__}"
    if torch.version.cuda is None:
        return f"{build} is a build without CUDA; install for GPUs with make install-gpu"
    try:
        torch.cuda.init()
        reason = "CUDA_VISIBLE_DEVICES hides all devices"
    except (RuntimeError, AssertionError) as error:
        reason = first_line(error)
    return f"{build}, built for CUDA {torch.version.cuda}, finds no device ({reason})"


def check_memory(experiment: Experiment, eval_problems: int) -> None:
    """Raise UserError if a batch or an evaluation of full-length sequences needs more than this
    machine's memory. This is a lower bound: samplers and forward passes need more."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    dataset = experiment.dataset
    longest = dataset.max_prompt_tokens + dataset.max_response_tokens
    for key, other, prompts, responses in (
        ("batch_size", "group_size", experiment.batch_size, experiment.group_size),
        ("eval_samples", "eval_problems", eval_problems, experiment.eval_samples),
    ):
        sequences = prompts * responses
        needed = sequences * longest * TOKEN_BYTES
        if needed > memory:
            raise UserError(
                f"{key}={getattr(experiment, key)}: {sequences} sequences ({key} x {other}) of up "
                f"to {longest} tokens need about {needed / 1e9:.3g} GB, and this machine has "
                f"{memory / 1e9:.3g} GB; choose fewer, or shorter ones"
            )


def check_context(dataset: Dataset, context: int) -> None:
    """Raise UserError if a longest prompt and a longest response exceed the model's context.

    With several turns, the last one may start at the end of a longest response, and is sampled to
    full length before it is cut.
    """
    limit, response = dataset.max_prompt_tokens, dataset.max_response_tokens
    times = 2 if isinstance(dataset, MultiTurnDataset) else 1
    if limit + times * response > context:
        raise UserError(
            f"dataset.max_prompt_tokens={limit}: with {'twice ' * (times - 1)}"
            f"dataset.max_response_tokens={response} it exceeds the model's context of "
            f"{context} tokens"
        )


def check_rope(dataset: Dataset, config: PretrainedConfig) -> None:
    """Raise UserError if a sequence may be so long that the rotary embedding of all others in its
    batch changes: results would then depend on the split into micro-batches."""
    settings = getattr(config, "rope_parameters", None) or {}
    for rope in [settings, *(each for each in settings.values() if isinstance(each, dict))]:
        longest = dataset.max_prompt_tokens + dataset.max_response_tokens
        original = rope.get("original_max_position_embeddings", config.max_position_embeddings)
        if rope.get("rope_type") in CHANGING_ROPE and longest > original:
            raise UserError(
                f"dataset.max_prompt_tokens={dataset.max_prompt_tokens}: with "
                f"dataset.max_response_tokens={dataset.max_response_tokens} a sequence may exceed "
                f"{original} tokens, beyond which this model's {rope['rope_type']} embedding of "
                "shorter sequences depends on the batch; choose smaller limits"
            )


def short_enough(
    dataset: Dataset,
    chat: ChatTemplate,
    problems: list[Problem],
    what: str,
    note: Callable[[str], None],
) -> list[Problem]:
    """The problems whose prompts are not too long. `note` gets a line about dropped ones.

    Raises UserError that shows the first prompt that is too long, unless the data set drops such
    prompts and some problems remain.
    """
    limit, droppable = dataset.max_prompt_tokens, isinstance(dataset, TextDataset)
    prompts = chat.encode_all([problem.messages for problem in problems])
    pairs = list(zip(problems, prompts, strict=True))
    kept = [problem for problem, prompt in pairs if len(prompt) <= limit]
    if len(kept) == len(problems):
        return problems
    if isinstance(dataset, TextDataset) and dataset.long_prompts == "drop" and kept:
        note(
            f"dropped {len(problems) - len(kept)} of {len(problems)} {what} prompts: longer than "
            f"dataset.max_prompt_tokens={limit}"
        )
        return kept
    problem, prompt = next(pair for pair in pairs if len(pair[1]) > limit)
    raise UserError(
        f"dataset.max_prompt_tokens={limit}: a prompt has {len(prompt)} tokens "
        f"({problem.messages[-1]['content'][:60]!r} …); raise the limit or filter the data"
        + (", or use dataset.long_prompts=drop" if droppable else "")
    )
