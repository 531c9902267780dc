"""The supervised phase of a tiny or a pretrained model; trained once, then cached."""

import contextlib
import dataclasses
import hashlib
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from rec_experiments.common.batch import Sequences, padded
from rec_experiments.common.distributed import digest_of
from rec_experiments.common.errors import UserError
from rec_experiments.common.files import cache_folder, lock, read_whole, write_with_digest
from rec_experiments.common.problems import Dataset, DemonstratedDataset, MultiTurnDataset, Problem
from rec_experiments.policy.batching import collate
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.logprobs import compute_logprobs
from rec_experiments.policy.models import FineTuned, Tiny, WarmStart

VERSION = 2  # part of the cache key: raise it when the warm start itself changes


def load_warm_start(
    source: Tiny | FineTuned,
    task: Dataset,
    model: nn.Module,
    chat: ChatTemplate,
    problems: list[Problem],
    note: Callable[[str], None],
    on_step: Callable[[int, int], None],
) -> None:
    """Warm-start the model on the data set's demonstrations, or load it from the cache.

    The tiny model is trained by one thread, so that the result does not depend on the machine's
    cores. A pretrained model is too slow for that: it is trained by the threads of the experiment,
    and its start is cached for that number of threads and for the weights that it began with.
    Raises UserError for a cached file that holds something else.
    """
    plan = source.warm_start
    if not plan.steps or not isinstance(task, DemonstratedDataset):
        note("the model has no warm start on this data set: expect an accuracy near 0")
        return
    threads = torch.get_num_threads()
    recipe = {
        "version": VERSION,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "model": _beginning(source, model, chat, threads)
        if isinstance(source, FineTuned)
        else dataclasses.asdict(source),
        "dataset": {"class": type(task).__name__, **dataclasses.asdict(task)},
        "problems": problems,  # the file that they come from may change
    }
    written = json.dumps(recipe, sort_keys=True, default=dataclasses.asdict)
    digest = hashlib.sha256(written.encode()).hexdigest()
    file = cache_folder() / f"warm_start_{digest[:16]}.pt"

    def make() -> bytes:
        shown = task.demonstrations(problems, plan.steps * plan.batch_size, plan.seed)
        prompts = [chat.encode(problem.messages) for problem in problems]
        rows = [(prompts[i], *trajectory(task, chat, problems[i], turns)) for i, turns in shown]
        torch.set_num_threads(threads if isinstance(source, FineTuned) else 1)
        warm_start(model, rows, plan, on_step)
        torch.set_num_threads(threads)
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
        return buffer.getvalue()

    weights = kept(file, make, f"{plan.steps} supervised steps", note)
    try:
        model.load_state_dict(torch.load(io.BytesIO(weights), weights_only=True))
    except Exception as error:  # for damaged files torch raises several unrelated types
        raise UserError(f"{file}: holds no warm start of this model; remove it") from error
    if not all(bool(weight.isfinite().all()) for weight in model.parameters()):
        raise UserError(
            f"{file}: its weights are not finite; remove it, and lower "
            "model.warm_start.learning_rate if that does not help"
        )


def _beginning(
    source: FineTuned, model: nn.Module, chat: ChatTemplate, threads: int
) -> dict[str, Any]:
    """What the start of a pretrained model depends on: not how the runs after it compute."""
    return {
        "weights": digest_of(model.state_dict()),
        "threads": threads,
        "attention": source.attention,
        "template": chat.tokenizer.chat_template,
        "warm_start": dataclasses.asdict(source.warm_start),
    }


def kept(file: Path, make: Callable[[], bytes], what: str, note: Callable[[str], None]) -> bytes:
    """The content of the file, or the result of `make`, which is then stored there.

    Runs that start together make it once. A damaged file is replaced. If the folder is not
    writable, the result is not stored.
    """
    if (found := read_whole(file)) is not None:
        return found
    with contextlib.ExitStack() as held:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock(held.enter_context(open(file.with_suffix(".lock"), "w")))
        except OSError as error:
            note(f"warm start: {what}, not kept: {file.parent}: {error.strerror}")
            return make()
        if (found := read_whole(file)) is not None:
            return found
        again = ", which was damaged" if file.exists() else ""
        note(f"warm start: {what}, once, kept in {file}{again}")
        made = make()
        try:
            write_with_digest(file, made)
        except OSError as error:
            note(f"the warm start is not kept: {file.parent}: {error.strerror}")
        return made


def trajectory(
    task: Dataset, chat: ChatTemplate, problem: Problem, turns: list[str]
) -> tuple[list[int], list[bool]]:
    """Tokens and mask of a demonstration: turns and the replies between them."""
    tokens = chat.encode_response(turns[0])
    mask = [True] * len(tokens)
    for n in range(1, len(turns)):
        assert isinstance(task, MultiTurnDataset)
        text = task.reply(problem, turns[:n])
        assert text is not None, f"no reply to turn {n} of the demonstration {turns}"
        reply, turn = chat.encode_reply(text), chat.encode_response(turns[n])
        tokens += reply + turn
        mask += [False] * len(reply) + [True] * len(turn)
    return tokens, mask


def warm_start(
    model: nn.Module,
    rows: list[tuple[list[int], list[int], list[bool]]],
    plan: WarmStart,
    on_step: Callable[[int, int], None] = lambda step, total: None,
) -> None:
    """Supervised learning on (prompt, response, mask), in order, `plan.batch_size` rows per step.

    The loss counts the response tokens whose mask is True.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.learning_rate, betas=(0.9, 0.98))
    model.train()
    for step in range(plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate * 0.5 * (1 + math.cos(math.pi * step / plan.steps))
        chunk = rows[step * plan.batch_size : (step + 1) * plan.batch_size]
        prompts, responses, masks = (list(column) for column in zip(*chunk, strict=True))
        batch = collate(Sequences.of(prompts, responses))
        logp_BT = compute_logprobs(model, batch, temperature=1.0).logp_BT
        mask_BT = padded(masks, torch.bool)
        loss = -(logp_BT * mask_BT).sum() / mask_BT.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        on_step(step + 1, plan.steps)
    model.zero_grad(set_to_none=True)  # none of it may reach the run's first step
