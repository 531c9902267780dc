"""The training loop, and what one gradient step is made of."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rec_experiments import rng
from rec_experiments.algo.surrogate import Algorithm
from rec_experiments.algo.weights import mismatch_weight
from rec_experiments.distributed import ALONE, World, pack
from rec_experiments.experiment import Experiment
from rec_experiments.policy.batching import Limits, distinct, passes
from rec_experiments.policy.chat import ChatTemplate
from rec_experiments.policy.logprobs import autocast, collate, score
from rec_experiments.records.run_folder import RunFolder
from rec_experiments.rollout.feed import RolloutFeed, joined
from rec_experiments.rollout.worker import RolloutRequest, RolloutWorker, Snapshot
from rec_experiments.training.metrics import TokenLog, response_metrics, rollout_metrics
from rec_experiments.types import LossInput, Problem, Rollouts, SampleKey

SAMPLES_SHOWN = 4  # responses written to samples.jsonl at each evaluation

Row = dict[str, Any]


@dataclass(kw_only=True)
class TrainingContext:
    """What a rank works with, loaded and checked before anything is written."""

    model: nn.Module
    reference: nn.Module | None  # the initial model; None when no metric needs it
    chat: ChatTemplate
    worker: RolloutWorker  # close it when the run is over
    train_problems: list[Problem]
    eval_problems: list[Problem]
    world: World = ALONE


def train(
    experiment: Experiment,
    context: TrainingContext,
    folder: RunFolder,
    on_row: Callable[[Row], None] = lambda row: None,
    note: Callable[[str], None] = lambda line: None,
    stop: Callable[[], bool] = lambda: False,
) -> bool:
    """Run the experiment to its end, from the folder's newest whole checkpoint if it has one.

    Every rank runs it, each on its part of the work, and all see the same rows.
    on_row sees each row of metrics.jsonl as it is written; note gets a line for people. `stop` is
    asked between gradient steps; once it says so, the state is saved and the run ends early.
    Returns whether all steps are done.
    """
    model = context.model
    optimizer = experiment.optimizer.build(model)
    feed = RolloutFeed(
        worker=context.worker,
        schedule=experiment.sync,
        problems=context.train_problems,
        seed=experiment.seed,
        steps=experiment.steps,
        batch_size=experiment.batch_size,
        group_size=experiment.group_size,
        temperature=experiment.sampler.temperature,
        shuffle=experiment.shuffle,
        world=context.world,
    )
    state, damaged = folder.load_checkpoint()
    for name in damaged:
        note(f"checkpoint {name} is damaged and was passed over")
    step = 0
    if state is not None:
        state = context.world.unpack(state)
        step = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        feed.restore(state["feed"])
        note(f"resumed after gradient step {step}")
    folder.rewind(step if state is not None else -1)

    def record(row: Row) -> None:
        folder.append("metrics.jsonl", [row])
        on_row(row)

    def save() -> None:
        state = {
            "step": step,
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "feed": feed.state(),
        }
        folder.save_checkpoint(step, pack(state))

    if state is None:
        record({"step": 0, **evaluate(experiment, context, folder, 0)})
        feed.reach(0, model)
    saved = step
    while step < experiment.steps and not any(context.world.gather(stop())):
        rollouts = feed.take(step)
        row = update(experiment, context, optimizer, rollouts)
        step += 1
        if step % experiment.eval_every == 0 or step == experiment.steps:
            row |= evaluate(experiment, context, folder, step)
        record({"step": step, **row})
        feed.reach(step, model)
        if step % experiment.checkpoint_every == 0 or step == experiment.steps:
            save()
            saved = step
    if saved < step:
        save()
    return step == experiment.steps


def update(
    experiment: Experiment,
    context: TrainingContext,
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
        context.model,
        rollouts,
        experiment.algorithm(),
        pad_id=context.chat.pad_id,
        temperature=experiment.sampler.temperature,
        micro_batch_size=experiment.micro_batch_size,
        micro_batch_tokens=experiment.micro_batch_tokens,
        compute_dtype=getattr(torch, experiment.model.compute_dtype),
        seed=experiment.seed,
        mismatch_cap=experiment.mismatch_cap,
        reference=context.reference if measure_kl else None,
        world=context.world,
    )
    log = TokenLog.joined(context.world.gather(log.cpu()))
    norm = experiment.optimizer.step(optimizer, context.model, step)
    row = {**rollout_metrics(rollouts), **log.reduce(), "train/grad_norm": norm}
    row["train/learning_rate"] = experiment.optimizer.rate(step)
    tokens = sum(response.length for response in rollouts.responses)
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
    micro_batch_tokens: int | None = None,
    compute_dtype: torch.dtype = torch.float32,
    mismatch_cap: float | None = None,
    reference: nn.Module | None = None,
    world: World = ALONE,
) -> TokenLog:
    """Add the gradient of the whole mini-batch to the model's, micro-batch by micro-batch.

    Denominators are counted over the mini-batch first, so the split into micro-batches and over
    ranks changes rounding only; so does computing a sequence once that several rows are. Returns
    the tokens of this rank's micro-batches. B rows, S distinct sequences.
    compute_dtype: below float32, the models run under autocast; the gradient keeps the dtype of
    the weights. With `mismatch_cap` the batch must bring its recomputed log-probabilities.
    """
    device = next(model.parameters()).device
    responses = [response.tokens for response in rollouts.responses]
    mask_BT = _padded([response.mask for response in rollouts.responses]).bool().to(device)
    sampled_BT = _padded([response.logp for response in rollouts.responses]).to(device)
    behavior_BT = sampled_BT
    correction_BT = None
    if mismatch_cap is not None:
        assert rollouts.recomputed is not None
        behavior_BT = _padded(rollouts.recomputed).to(device)
        correction_BT = mismatch_weight(behavior_BT - sampled_BT, mismatch_cap)
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
    sequences = distinct(rollouts.prompts, responses)
    has_gradient_B = algorithm.has_gradient(credit).tolist()
    limits = Limits(sequences=micro_batch_size, tokens=micro_batch_tokens)
    for part_S, needs_gradient, blank in passes(sequences, has_gradient_B, limits, world):
        batch = collate([s.prompt for s in part_S], [s.response for s in part_S], pad_id)
        width = batch.response_length
        index_B = torch.tensor([i for s in part_S for i in s.rows], device=device)
        place_B = torch.tensor([n for n, s in enumerate(part_S) for _ in s.rows], device=device)
        written_BT = mask_BT[index_B, :width] & (not blank)
        part = credit.rows(index_B, width)
        part = replace(part, mask_BT=part.mask_BT & written_BT)
        with torch.set_grad_enabled(needs_gradient):
            with autocast(device, compute_dtype):
                scores = score(model, reference, batch.to(device), temperature).rows(place_B)
            out = algorithm.loss(
                LossInput(
                    scores.logp_BT,
                    behavior_BT[index_B, :width],
                    part,
                    None if correction_BT is None else correction_BT[index_B, :width],
                )
            )
        if needs_gradient:
            out.loss.backward()
        log.add(out, part.mask_BT)
        if correction_BT is not None:
            log.add_mismatch((behavior_BT - sampled_BT)[index_B, :width], part.mask_BT)
        elif rollouts.staleness == 0:  # only then the trainer's pass is at the sampler's version
            log.add_mismatch(out.log_ratio_BT, part.mask_BT)
        log.add_policy(scores.entropy_BT, scores.kl_BT, written_BT)
    return log


def evaluate(experiment: Experiment, context: TrainingContext, folder: RunFolder, step: int) -> Row:
    """Score the weights after `step` gradient steps on the held-out problems."""
    draws = [
        [
            SampleKey(experiment.seed, rng.EVAL, step, group, k)
            for k in range(experiment.eval_samples)
        ]
        for group in range(len(context.eval_problems))
    ]
    mine = context.world.share(len(context.eval_problems))
    share = context.worker.answer(
        Snapshot.of(context.model, step),
        RolloutRequest(
            context.eval_problems[mine], draws[mine], experiment.sampler.eval_temperature
        ),
    )
    answered = joined(context.world.gather(share))
    shown = list(zip(answered.groups, answered.responses, answered.verdicts, strict=True))
    folder.append(
        "samples.jsonl",
        [
            {
                "step": step,
                "prompt": context.eval_problems[group].messages[-1]["content"],
                "response": context.chat.transcript(response),
                "answer": context.eval_problems[group].answer,
                "reward": verdict.reward,
            }
            for group, response, verdict in shown[:SAMPLES_SHOWN]
        ],
    )
    return {
        **response_metrics("eval", answered.responses, answered.verdicts),
        "time/eval": sum(answered.seconds.values()),
    }


def _padded(rows: Sequence[Sequence[float]]) -> Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[0.0] * (width - len(row))] for row in rows])
