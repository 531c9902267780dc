"""The training loop, and what one gradient step is made of."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rec_experiments import rng
from rec_experiments.algo.surrogate import Algorithm
from rec_experiments.distributed import ALONE, World, pack
from rec_experiments.experiment import Experiment
from rec_experiments.metrics import TokenLog, response_metrics, rollout_metrics
from rec_experiments.models import Codec, collate, score
from rec_experiments.rollout import Actor, RolloutFeed, Snapshot, joined
from rec_experiments.run_folder import RunFolder
from rec_experiments.types import Draw, LossInput, Problem, Rollouts

SAMPLES_SHOWN = 4  # responses written to samples.jsonl at each evaluation

Row = dict[str, Any]


@dataclass(kw_only=True)
class Workbench:
    """What a rank works with, loaded and checked before anything is written."""

    model: nn.Module
    reference: nn.Module | None  # the initial model; None when no metric needs it
    codec: Codec
    actor: Actor
    train_problems: list[Problem]
    eval_problems: list[Problem]
    world: World = ALONE


def train(
    experiment: Experiment,
    bench: Workbench,
    folder: RunFolder,
    on_row: Callable[[Row], None] = lambda row: None,
    note: Callable[[str], None] = lambda line: None,
) -> None:
    """Run the experiment to its end, from the folder's newest whole checkpoint if it has one.

    Every rank runs it, each on its part of the work, and all see the same rows.
    on_row sees each row of metrics.jsonl as it is written; note gets a line for people.
    """
    model = bench.model
    optimizer = experiment.optimizer.build(model)
    feed = RolloutFeed(
        actor=bench.actor,
        schedule=experiment.sync,
        problems=bench.train_problems,
        seed=experiment.seed,
        steps=experiment.steps,
        batch_size=experiment.batch_size,
        group_size=experiment.group_size,
        temperature=experiment.sampler.temperature,
        shuffle=experiment.shuffle,
        world=bench.world,
    )
    state, damaged = folder.load_checkpoint()
    for name in damaged:
        note(f"checkpoint {name} is damaged and was passed over")
    step = 0
    if state is not None:
        state = bench.world.unpack(state)
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        feed.restore(state["feed"])
        note(f"resumed after gradient step {step}")
    folder.rewind(step if state is not None else -1)

    def record(row: Row) -> None:
        folder.append("metrics.jsonl", [row])
        on_row(row)

    if state is None:
        record({"step": 0, **evaluate(experiment, bench, folder, 0)})
        feed.reach(0, model)
    while step < experiment.steps:
        rollouts = feed.take(step)
        row = update(experiment, bench, optimizer, rollouts)
        step += 1
        if step % experiment.eval_every == 0 or step == experiment.steps:
            row |= evaluate(experiment, bench, folder, step)
        record({"step": step, **row})
        feed.reach(step, model)
        if step % experiment.checkpoint_every == 0 or step == experiment.steps:
            folder.save_checkpoint(
                step,
                pack(
                    {
                        "step": step,
                        "model": model.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "feed": feed.state(),
                    }
                ),
            )


def update(
    experiment: Experiment,
    bench: Workbench,
    optimizer: torch.optim.Optimizer,
    rollouts: Rollouts,
) -> Row:
    """One gradient step on one batch. Returns its row of metrics."""
    started = time.perf_counter()
    step = rollouts.index
    # Named by seed and step, so that any module with dropout is the same after a resume.
    torch.manual_seed(int(rng.generator(experiment.seed, rng.TRAIN, step).integers(1 << 62)))
    measure_kl = experiment.kl_every and (step + 1) % experiment.kl_every == 0
    log = accumulate_gradient(
        bench.model,
        rollouts,
        experiment.algorithm(),
        pad_id=bench.codec.pad_id,
        temperature=experiment.sampler.temperature,
        micro_batch_size=experiment.micro_batch_size,
        seed=experiment.seed,
        reference=bench.reference if measure_kl else None,
        world=bench.world,
    )
    log = TokenLog.joined(bench.world.gather(log.cpu()))
    norm = experiment.optimizer.step(optimizer, bench.model, step)
    row = {**rollout_metrics(rollouts), **log.reduce(), "train/grad_norm": norm}
    row["train/learning_rate"] = experiment.optimizer.rate(step)
    tokens = sum(len(response.tokens) for response in rollouts.responses)
    seconds = {**rollouts.seconds, "train": time.perf_counter() - started}
    return {
        **row,
        "tokens/response": tokens,
        "tokens/rollout_per_second": tokens / seconds["rollout"],
        "tokens/train_per_second": tokens / seconds["train"],
        **{f"time/{name}": value for name, value in seconds.items()},
    }


def accumulate_gradient(
    model: nn.Module,
    rollouts: Rollouts,
    algorithm: Algorithm,
    *,
    pad_id: int,
    temperature: float,
    micro_batch_size: int | None,
    seed: int,
    reference: nn.Module | None = None,
    world: World = ALONE,
) -> TokenLog:
    """Add the gradient of the whole mini-batch to the model's, micro-batch by micro-batch.

    Denominators are counted over the mini-batch first, so the split into micro-batches and over
    ranks changes rounding only. Returns the tokens of this rank's micro-batches.
    """
    device = next(model.parameters()).device
    responses = [response.tokens for response in rollouts.responses]
    mask_BT = _padded([[1.0] * len(tokens) for tokens in responses]).bool().to(device)
    behavior_BT = _padded([response.logp for response in rollouts.responses]).to(device)
    credit = algorithm.credit(
        torch.tensor([v.reward for v in rollouts.verdicts], device=device, dtype=torch.float64),
        torch.tensor(rollouts.groups, device=device),
        mask_BT,
        rng.generator(seed, rng.DROP, rollouts.index),
    )
    log = TokenLog()
    model.train()
    for parameter in model.parameters():  # a batch without any gradient still is a step of AdamW
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    lengths = [len(p) + len(r) for p, r in zip(rollouts.prompts, responses, strict=True)]
    has_gradient_B = algorithm.has_gradient(credit)
    for rows, needs_gradient, blank in passes(lengths, has_gradient_B, micro_batch_size, world):
        batch = collate([rollouts.prompts[i] for i in rows], [responses[i] for i in rows], pad_id)
        width = batch.response_length
        index_B = torch.tensor(rows, device=device)
        written_BT = mask_BT[index_B, :width] & (not blank)
        part = credit.rows(index_B, width)
        part = replace(part, mask_BT=part.mask_BT & written_BT)
        with torch.set_grad_enabled(needs_gradient):
            scores = score(model, reference, batch.to(device), temperature)
            out = algorithm.loss(LossInput(scores.logp_BT, behavior_BT[index_B, :width], part))
        if needs_gradient:
            out.loss.backward()
        log.add(out, part.mask_BT)
        log.add_policy(scores.entropy_BT, scores.kl_BT, written_BT)
    return log


class Pass(NamedTuple):
    """One forward pass over some rows, with a backward pass if they need a gradient.

    blank: nothing in it counts, it only keeps step with the other ranks.
    """

    rows: list[int]
    needs_gradient: bool
    blank: bool = False


def passes(
    lengths: list[int], has_gradient_B: Tensor, size: int | None, world: World
) -> list[Pass]:
    """This rank's passes over a mini-batch.

    All ranks make the same number of each kind, in the same order: in every pass they exchange
    weights and gradients. A rank that has fewer micro-batches repeats the shortest row, blank.
    """
    plans = []
    for hand in deal(lengths, has_gradient_B, world.size):
        chunks = micro_batches([lengths[i] for i in hand], has_gradient_B[hand], size)
        plans.append([([hand[i] for i in rows], wanted) for rows, wanted in chunks])
    blank_rows = [lengths.index(min(lengths))]
    mine: list[Pass] = []
    for wanted in (True, False):
        counts = [sum(kind is wanted for _, kind in plan) for plan in plans]
        mine += [Pass(rows, wanted) for rows, kind in plans[world.rank] if kind is wanted]
        mine += [Pass(blank_rows, wanted, blank=True)] * (max(counts) - counts[world.rank])
    return mine


def deal(lengths: list[int], has_gradient_B: Tensor, ranks: int) -> list[list[int]]:
    """Row numbers of each rank, dealt by length, so that the ranks' tokens differ by a row at most.

    Rows without a gradient are dealt apart, since they cost less.
    """
    hands: list[list[int]] = [[] for _ in range(ranks)]
    for wanted in (True, False):
        rows = [i for i, has in enumerate(has_gradient_B.tolist()) if has is wanted]
        rows.sort(key=lambda i: (-lengths[i], i))
        for rank, hand in enumerate(hands):
            hand.extend(rows[rank::ranks])
    return hands


def micro_batches(
    lengths: list[int], has_gradient_B: Tensor, size: int | None
) -> Iterator[tuple[list[int], bool]]:
    """Row numbers of each micro-batch and whether it needs a backward pass.

    Rows of like length go together, to save padding. Rows without a gradient are apart: they are
    only measured, which costs a third.
    """
    for wanted in (True, False):
        rows = [i for i, has in enumerate(has_gradient_B.tolist()) if has is wanted]
        rows.sort(key=lambda i: (-lengths[i], i))
        chunk = size or max(1, len(rows))
        for start in range(0, len(rows), chunk):
            yield rows[start : start + chunk], wanted


def evaluate(experiment: Experiment, bench: Workbench, folder: RunFolder, step: int) -> Row:
    """Score the weights after `step` gradient steps on the held-out problems."""
    draws = [
        [Draw(experiment.seed, rng.EVAL, step, group, k) for k in range(experiment.eval_samples)]
        for group in range(len(bench.eval_problems))
    ]
    mine = bench.world.share(len(bench.eval_problems))
    share = bench.actor.answer(
        Snapshot.of(bench.model, step),
        bench.eval_problems[mine],
        draws[mine],
        experiment.sampler.eval_temperature,
    )
    answered = joined(bench.world.gather(share))
    shown = list(zip(answered.groups, answered.responses, answered.verdicts, strict=True))
    folder.append(
        "samples.jsonl",
        [
            {
                "step": step,
                "prompt": bench.eval_problems[group].messages[-1]["content"],
                "response": bench.codec.decode(response.tokens),
                "answer": bench.eval_problems[group].answer,
                "reward": verdict.reward,
            }
            for group, response, verdict in shown[:SAMPLES_SHOWN]
        ],
    )
    return {
        **response_metrics("eval", answered.responses, answered.verdicts),
        "time/eval": sum(answered.seconds.values()),
    }


def _padded(rows: list[list[float]]) -> Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([row + [0.0] * (width - len(row)) for row in rows])
