"""From an experiment to a workbench: data, model, warm start, sampler and verifier, all checked."""

import copy
import dataclasses
import fcntl
import functools
import hashlib
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedModel

from rec_experiments.batching import Limits
from rec_experiments.distributed import ALONE, World, check_ranks
from rec_experiments.experiment import Experiment
from rec_experiments.models import Codec, Tiny, warm_start
from rec_experiments.rescore import Rescorer
from rec_experiments.rewards.judge import Isolated, Judge, inline
from rec_experiments.rollout import Actor
from rec_experiments.run_folder import write_atomic
from rec_experiments.train import Workbench
from rec_experiments.types import MultiTurnTask, Problem, Task, UserError

WARM_START_VERSION = 1  # part of the cache key: raise it when the warm start itself changes


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
            Limits(rows=experiment.micro_batch_size, tokens=experiment.micro_batch_tokens),
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


def load_warm_start(
    experiment: Experiment,
    model: nn.Module,
    codec: Codec,
    problems: list[Problem],
    note: Callable[[str], None],
    on_step: Callable[[int, int], None],
) -> None:
    """Warm-start the tiny model on the task's demonstrations, from the cache if it is there."""
    plan = experiment.model.warm_start
    if not plan.steps or not hasattr(experiment.dataset, "demonstrations"):
        note("the tiny model starts untrained on this data set: expect an accuracy near 0")
        return
    recipe = {
        "version": WARM_START_VERSION,
        "torch": torch.__version__,
        "model": dataclasses.asdict(experiment.model),
        "dataset": dataclasses.asdict(experiment.dataset),
    }
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"warm_start_{digest[:16]}.pt"
    with open(file.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # runs that start together make it once
        if not file.exists():
            note(f"warm start: {plan.steps} supervised steps, once, kept in {file}")
            shown = experiment.dataset.demonstrations(
                problems, plan.steps * plan.batch_size, plan.seed
            )
            prompts = [codec.encode(problem.messages) for problem in problems]
            rows = [
                (prompts[i], *trajectory(experiment.dataset, codec, problems[i], turns))
                for i, turns in shown
            ]
            torch.set_num_threads(1)  # the result must not depend on the machine's cores
            warm_start(model, rows, codec.pad_id, plan, on_step)
            torch.set_num_threads(experiment.threads)
            buffer = io.BytesIO()
            torch.save(model.state_dict(), buffer)
            write_atomic(file, buffer.getvalue())
    model.load_state_dict(torch.load(file, weights_only=True))


def trajectory(
    task: Task, codec: Codec, problem: Problem, turns: list[str]
) -> tuple[list[int], list[bool]]:
    """Tokens and mask, as of a Response, of the model's turns with the task's replies between."""
    tokens = codec.encode_response(turns[0])
    mask = [True] * len(tokens)
    for n in range(1, len(turns)):
        assert isinstance(task, MultiTurnTask)
        text = task.reply(problem, turns[:n])
        assert text is not None, f"nobody replies to turn {n} of the demonstration {turns}"
        reply, turn = codec.encode_reply(text), codec.encode_response(turns[n])
        tokens += reply + turn
        mask += [False] * len(reply) + [True] * len(turn)
    return tokens, mask


def cache_folder() -> Path:
    """REC_EXPERIMENTS_CACHE, or the user's cache folder."""
    default = Path.home() / ".cache" / "rec_experiments"
    return Path(os.environ.get("REC_EXPERIMENTS_CACHE", default))
