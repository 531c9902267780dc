"""From an experiment to a workbench: data, model, warm start, sampler and verifier, all checked."""

import copy
import dataclasses
import fcntl
import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from rec_experiments.experiment import Experiment
from rec_experiments.models import Codec, Tiny, warm_start
from rec_experiments.rescore import Rescorer
from rec_experiments.rewards.judge import Isolated, Judge, inline
from rec_experiments.rollout import Actor
from rec_experiments.run_folder import write_atomic
from rec_experiments.train import Workbench
from rec_experiments.types import Problem, Task, UserError

WARM_START_VERSION = 1  # part of the cache key: raise it when the warm start itself changes


def prepare(
    experiment: Experiment,
    note: Callable[[str], None] = lambda line: None,
    on_warm_step: Callable[[int, int], None] = lambda step, total: None,
) -> Workbench:
    """Load everything. Raises UserError for what the user can mend; writes only to the cache.

    note gets a line for people; on_warm_step the steps of a warm start, done and
    in total, if one is made.
    """
    device = pick_device(experiment.device)
    torch.set_num_threads(experiment.threads)
    train_problems, eval_problems = experiment.dataset.load()
    eval_problems = eval_problems[: experiment.eval_problems]
    model = experiment.model.model()
    codec = Codec(experiment.model.tokenizer(), model)
    check_lengths(experiment, codec, train_problems + eval_problems)
    if isinstance(experiment.model, Tiny):
        load_warm_start(experiment, model, codec, train_problems, note, on_warm_step)
    model.to(device)
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
            model, codec.pad_id, experiment.sampler.temperature, experiment.micro_batch_size
        )
    return Workbench(
        model=model,
        reference=copy.deepcopy(model).eval().requires_grad_(False)
        if experiment.kl_every
        else None,
        codec=codec,
        actor=Actor(sampler, codec, judge_for(experiment.dataset), rescorer),
        train_problems=train_problems,
        eval_problems=eval_problems,
    )


def judge_for(task: Task) -> Judge:
    """In this process, or in killable workers where the task asks for them."""
    if not task.verifier_workers:
        return inline(task.verify)
    return Isolated(task.verify, task.verifier_workers, task.verifier_timeout)


def pick_device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device=cuda: this machine has no CUDA device; use device=cpu or device=auto"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def check_lengths(experiment: Experiment, codec: Codec, problems: list[Problem]) -> None:
    """Raise UserError if a prompt and a longest response do not fit the model's context."""
    limit, response = experiment.dataset.max_prompt_tokens, experiment.dataset.max_response_tokens
    if limit + response > codec.context:
        raise UserError(
            f"dataset.max_prompt_tokens={limit}: with dataset.max_response_tokens={response} it "
            f"exceeds the model's context of {codec.context} tokens"
        )
    for problem in problems:
        length = len(codec.encode(problem.messages))
        if length > limit:
            raise UserError(
                f"dataset.max_prompt_tokens={limit}: a prompt has {length} tokens "
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
            pairs = experiment.dataset.demonstrations(
                problems, plan.steps * plan.batch_size, plan.seed
            )
            prompts = [codec.encode(problem.messages) for problem in problems]
            rows = [(prompts[i], codec.encode_response(text)) for i, text in pairs]
            torch.set_num_threads(1)  # the result must not depend on the machine's cores
            warm_start(model, rows, codec.pad_id, plan, on_step)
            torch.set_num_threads(experiment.threads)
            buffer = io.BytesIO()
            torch.save(model.state_dict(), buffer)
            write_atomic(file, buffer.getvalue())
    model.load_state_dict(torch.load(file, weights_only=True))


def cache_folder() -> Path:
    """REC_EXPERIMENTS_CACHE, or the user's cache folder."""
    default = Path.home() / ".cache" / "rec_experiments"
    return Path(os.environ.get("REC_EXPERIMENTS_CACHE", default))
